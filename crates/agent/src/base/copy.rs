//! A copy of the server, on its way into the store.

use std::cell::Cell;
use std::time::Duration;

use anyhow::bail;
use backup::base::{BaseError, Writer, Written};
use tokio::time::{Instant, sleep};

use super::Order;
use super::stream::{Refused, Stream};

/// How long PostgreSQL may send nothing. It begins with a checkpoint.
const SILENCE: Duration = Duration::from_secs(30 * 60);

/// There are pages with wrong checksums; the server's warnings name the files.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL has found pages with wrong checksums: {0}")]
pub(super) struct DamagedPages(String);

/// Copies the server into the store.
pub(super) async fn copy(order: &Order, writer: Writer, progress: impl Fn(u64)) -> anyhow::Result<Written> {
    let heard = Cell::new(Instant::now());
    let copied = async {
        let mut stream = Stream::begin(&order.socket_directory, order.port, !order.copy.accepts_damage).await?;
        let written = writer.write(&mut stream, |bytes| {
            heard.set(Instant::now());
            progress(bytes);
        });
        match written.await {
            Err(BaseError::Read(error)) => match error.downcast::<Refused>() {
                Ok(refused) if refused.is_of_damage() => {
                    let warnings: Vec<_> = stream.warnings().collect();
                    Err(DamagedPages(warnings.join("; ")).into())
                }
                Ok(refused) => Err(refused.into()),
                Err(error) => Err(error.into()),
            },
            written => Ok(written?),
        }
    };
    tokio::select! {
        copied = copied => copied,
        () = silence(&heard) => bail!("PostgreSQL has sent nothing for {} minutes", SILENCE.as_secs() / 60),
    }
}

/// Waits until nothing was heard for [`SILENCE`].
async fn silence(heard: &Cell<Instant>) {
    while heard.get().elapsed() < SILENCE {
        sleep(SILENCE - heard.get().elapsed().min(SILENCE)).await;
    }
}
