//! What the pod's environment says.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};

/// Where and as whom to write.
#[derive(Clone)]
pub struct Settings {
    /// The Service. An address, since a static program has no resolver.
    pub service: SocketAddr,
    /// User, password and database.
    pub login: Login,
    /// Names this run's rows: letters, digits and dashes.
    pub run: String,
    /// The node, for the notes.
    pub node: String,
    /// The second writer, on the primary's node.
    pub inside: bool,
}

/// User, password and database.
#[derive(Clone)]
pub struct Login {
    /// The role.
    pub user: String,
    /// Its password.
    pub password: String,
    /// The database.
    pub database: String,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// When a variable is missing or malformed.
    pub fn from_env() -> Result<Self> {
        let text = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
        let address: IpAddr = text("SERVICE_ADDRESS")?.parse().context("read SERVICE_ADDRESS")?;
        let port: u16 = text("SERVICE_PORT")?.parse().context("read SERVICE_PORT")?;
        let run = text("RUN")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        ensure!(run.bytes().all(plain), "RUN may have letters, digits and dashes");
        Ok(Self {
            service: SocketAddr::new(address, port),
            login: Login {
                user: text("DATABASE_USER")?,
                password: text("DATABASE_PASSWORD")?,
                database: text("DATABASE_NAME")?,
            },
            run,
            node: text("NODE")?,
            inside: std::env::var("INSIDE").is_ok_and(|value| value == "true"),
        })
    }
}
