//! The link between two members, which can be cut.

use std::net::Ipv4Addr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A port that forwards connections to a server's.
pub struct Link {
    /// The port.
    pub port: u16,
    cut: watch::Sender<bool>,
}

impl Link {
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, server, is_cut.clone()));
            }
        });
        Self { port, cut }
    }

    /// Cuts the link and all connections through it, or joins it again.
    pub fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

async fn pass(mut near: TcpStream, server: u16, mut cut: watch::Receiver<bool>) {
    if *cut.borrow() {
        return;
    }
    let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
        return;
    };
    tokio::select! {
        // Either side may end it.
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = cut.wait_for(|cut| *cut) => {}
    }
}
