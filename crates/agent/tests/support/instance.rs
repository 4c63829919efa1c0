//! One instance: volumes, identity, server and connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use agent::postgres::{
    CloneSource, Config, Files, InitdbRequest, PostgresError, Primary, Role, Server, Settings, Sql, Status, StopMode,
    Verifier, clone, initdb,
};
use agent::process::Supervisor;
use agent::tools::Tools;
use agent::volume::{ControlData, DataState, EnforcedSettings, Member, Volume};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machine::protocol::{Epoch, MemberId};
use machine::quorum::SyncRule;
use rcgen::SubjectPublicKeyInfo;
use tokio_postgres::{Client, NoTls};

use crate::certificates::{Authority, NAME, params};
use crate::unprivileged::Place;

/// The owner's password in the tests; needs quoting everywhere.
pub const PASSWORD: &str = "ge'hei\\m €";

/// Everything that the instances of a test share.
pub struct Scene {
    pub place: Place,
    pub supervisor: Supervisor,
    pub tools: Tools,
    pub authority: Authority,
}

/// Copies a directory with all that is in it. (The supervisor reaps every child: nothing else can wait for one.)
pub async fn copy_files(supervisor: &Supervisor, from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    let copied = supervisor.run(command, Duration::from_secs(120)).await;
    copied.expect("copied");
}

impl Scene {
    pub async fn new(place: Place) -> Self {
        let (supervisor, _exits) = Supervisor::start().expect("a supervisor");
        let (major, directory) = &place.binaries;
        let tools = Tools::at(&supervisor, directory, *major)
            .await
            .expect("PostgreSQL's programs");
        Self {
            supervisor,
            tools,
            authority: Authority::new(),
            place,
        }
    }

    pub fn instance(&self, ordinal: u32) -> Instance {
        let root = self.place.scratch.join(ordinal.to_string());
        for directory in ["data", "wal", "tls"] {
            std::fs::create_dir_all(root.join(directory)).expect("a directory");
        }
        self.authority.write(&root.join("tls"), "orders-agent", &[NAME]);
        let volume = Volume::new(root.join("data"), Some(root.join("wal")));
        volume.prepare().expect("a usable volume");
        let id = MemberId::new(ordinal, "1a2b3c4d-5e6f", 0xBEEF + ordinal);
        let member = volume.make_member(&id, "1a2b3c4d-5e6f").expect("an identity");
        let key = STANDARD.decode(&member.public_key).expect("base64");
        let key = SubjectPublicKeyInfo::from_der(&key).expect("a public key");
        let certificate = params(id.as_str(), &[])
            .signed_by(&key, &self.authority.issuer)
            .expect("signed")
            .pem();
        volume.write_certificate(&certificate).expect("a certificate that fits");
        let files = Files {
            socket: root.join("run/socket"),
            tls: root.join("tls"),
            certificate: volume.certificate_file(),
            key: volume.key_file(),
            credential: volume.credential_file(),
            system_user: self.place.user.clone(),
        };
        let port = free_port();
        let settings = Settings {
            major: self.tools.major(),
            cluster: "orders".to_owned(),
            port,
            locale: "C.UTF-8".to_owned(),
            parameters: BTreeMap::new(),
            wal: volume.wal_room().expect("a size"),
            suspicion: Duration::from_secs(3),
            archive: None,
        };
        let sql = Sql::new(&files.socket, port, self.tools.major());
        Instance {
            tools: self.tools.clone(),
            volume,
            member,
            files,
            settings,
            sql,
            server: None,
            epoch: Epoch(1),
        }
    }
}

/// A primary that lets applications in and whose commits wait for no other member.
pub fn open_primary() -> Role {
    Role::Primary {
        rule: SyncRule::default(),
        open: true,
    }
}

pub struct Instance {
    pub tools: Tools,
    pub volume: Volume,
    pub member: Member,
    pub files: Files,
    pub settings: Settings,
    pub sql: Sql,
    pub server: Option<Server>,
    /// The epoch of the primary that it follows.
    pub epoch: Epoch,
}

impl Instance {
    pub fn request(&self) -> InitdbRequest {
        InitdbRequest {
            database: "Orders \"1\"".to_owned(),
            owner: "app".to_owned(),
            verifier: Verifier::of(PASSWORD).expect("a verifier"),
            data_checksums: true,
            wal_segment_size: 4,
            locale: "C.UTF-8".to_owned(),
            post_init_sql: vec![
                "CREATE TABLE public.entry (number int PRIMARY KEY)".to_owned(),
                "INSERT INTO entry VALUES (1); INSERT INTO entry VALUES (2)".to_owned(),
            ],
        }
    }

    pub async fn initdb(&self) -> Result<(), PostgresError> {
        initdb(&self.tools, &self.volume, &self.files.system_user, &self.request()).await
    }

    pub async fn data(&self) -> DataState {
        self.volume.data_state(&self.tools).await.expect("readable data")
    }

    pub async fn control(&self) -> ControlData {
        match self.data().await {
            DataState::Ready(control) => control,
            other => panic!("{other:?}"),
        }
    }

    pub fn config(&self, role: &Role) -> Config {
        Config::render(&self.settings, &self.files, role).expect("a configuration")
    }

    pub async fn try_start(&mut self, role: &Role) -> Result<(), PostgresError> {
        let config = self.config(role);
        self.server = Some(Server::start(&self.tools, &self.volume, &self.files, &config).await?);
        Ok(())
    }

    pub async fn start_primary(&mut self) {
        self.try_start(&open_primary()).await.expect("started");
        self.until("accepts writes", |status| !status.in_recovery).await;
    }

    pub async fn start_standby(&mut self, primary: &Instance) {
        let role = self.standby_of(primary).await;
        self.volume.follow(self.epoch).expect("no higher promise");
        self.try_start(&role).await.expect("started");
        self.until_streaming().await;
    }

    pub async fn until_streaming(&mut self) -> Status {
        self.until("streams", is_streaming).await
    }

    pub async fn standby_of(&self, primary: &Instance) -> Role {
        let enforced: EnforcedSettings = self.control().await.enforced;
        Role::Standby {
            primary: Some(self.upstream(primary)),
            enforced,
        }
    }

    pub fn upstream(&self, primary: &Instance) -> Primary {
        let member = self.member.id.clone();
        Primary {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: primary.settings.port,
            member,
        }
    }

    pub async fn clone_of(&self, primary: &Instance, system_id: &str) -> Result<(), PostgresError> {
        let source = CloneSource {
            primary: self.upstream(primary),
            files: self.files.clone(),
            system_id: system_id.to_owned(),
        };
        clone(&self.tools, &self.volume, &source).await
    }

    /// Waits until the server's status is as wanted.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let mut last = String::new();
        for _ in 0..1_500 {
            match self.sql.status().await {
                Ok(status) if wanted(&status) => return status,
                Ok(status) => last = format!("{status:?}"),
                Err(error) => last = error.to_string(),
            }
            let ended = self.server.as_ref().and_then(Server::exited);
            assert!(ended.is_none(), "the server ended ({ended:?}) before it {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not within 30 s: {what}; last: {last}");
    }

    pub async fn stop(&mut self, mode: StopMode) {
        let server = self.server.take().expect("a server");
        server.stop(mode).expect("a signal");
        let status = server
            .stopped(Duration::from_secs(60))
            .await
            .expect("an end within a minute");
        if mode == StopMode::Fast {
            assert!(status.success(), "{status}");
        }
    }

    /// A superuser's session through the socket, without pinned settings.
    pub async fn session(&self, database: &str) -> Client {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(&self.files.socket)
            .port(self.settings.port)
            .user("postgres")
            .dbname(database);
        let (client, connection) = config.connect(NoTls).await.expect("a session");
        tokio::spawn(connection);
        client
    }

    pub async fn text(&self, query: &str) -> String {
        let client = self.session("postgres").await;
        client.query_one(query, &[]).await.expect("an answer").get(0)
    }
}

pub fn is_streaming(status: &Status) -> bool {
    status
        .receiver
        .as_ref()
        .is_some_and(|receiver| receiver.status == "streaming")
}

/// A port for a server. None of those that the system gives to listeners such as [`crate::link`]'s: a server that finds
/// its IPv4 address taken serves on the others all the same, and its clients reach somebody else. Each process begins at
/// a place of its own.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 500).expect("small") * 40;
    loop {
        let port = 10_000 + (begin + TRIED.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
