//! `restore PLACE ACCESS FOLDER DIRECTORY`: unpacks the newest backup of a database into an empty directory.
//!
//! PLACE is a [`backup::Place`] in JSON, ACCESS the directory with the credentials, and FOLDER the database's folder in
//! the store. `cargo xtask bench backup` measures it: the agent unpacks a backup in the same way.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use backup::base::{backups, unpack};
use backup::layout::ClusterFolder;
use backup::{Access, Store};

/// The only line of history.
const LINE: u32 = 1;
/// Time limit of a request that transfers little.
const LIMIT: Duration = Duration::from_secs(45);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, access, folder, directory] = arguments.as_slice() else {
        return Err("usage: restore PLACE ACCESS FOLDER DIRECTORY".into());
    };
    let store = Store::open(&serde_json::from_str(place)?, &Access::read(Path::new(access))?)?;
    let folder: ClusterFolder = folder.parse()?;
    let known = backups(&store, &folder, LINE, LIMIT).await?;
    let newest = known.last().ok_or("there is no backup")?;
    unpack(&store, &folder, LINE, newest, None, Path::new(directory), |_| {}).await?;
    Ok(())
}
