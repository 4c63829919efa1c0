//! Settings from the pod's environment.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

/// The target of the writing, and the user.
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
    /// What the clients of the lists need; their pods are others than those of the writers of rows.
    pub lists: Option<Lists>,
}

/// The clients of the lists.
#[derive(Clone, Copy)]
pub struct Lists {
    /// Number of the first client of this pod.
    pub first: u32,
    /// How many clients it has.
    pub clients: u32,
    /// When the soak began, in seconds since the epoch: the same for all its pods.
    pub began: u64,
    /// The seed of their random choices.
    pub seed: u64,
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
            lists: std::env::var("LISTS")
                .ok()
                .map(|value| Lists::parse(&value))
                .transpose()?,
        })
    }
}

impl Lists {
    /// FIRST CLIENTS BEGAN SEED.
    fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<u64> = text
            .split(' ')
            .map(|word| word.parse().with_context(|| format!("read LISTS {text:?}")))
            .collect::<Result<_>>()?;
        let [first, clients, began, seed] = numbers.as_slice() else {
            bail!("LISTS {text:?} has not four numbers");
        };
        Ok(Self {
            first: u32::try_from(*first)?,
            clients: u32::try_from(*clients)?,
            began: *began,
            seed: *seed,
        })
    }
}
