//! Credentials, and the certificates that the user trusts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use crate::Problem;

/// Credentials by their usual names, and the certificates of the user's own authority. Without credentials, the
/// workload's own identity is used.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    values: BTreeMap<String, String>,
    authority: Option<Vec<u8>>,
}

/// The file with the certificates of the user's own authority.
const AUTHORITY: &str = "ca.crt";

/// The credentials that are known. Other keys of the Secret are ignored.
const NAMES: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    // The JSON of a service account, not the path of a file. Both names are in use.
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
];

impl Access {
    /// Reads a mounted Secret: one file for each name. Space around a value is removed.
    ///
    /// # Errors
    /// Fails with [`Problem::Unusable`] if the directory or a file cannot be read, or a value is not text.
    pub fn read(directory: &Path) -> Result<Self, Problem> {
        let mut access = Self::default();
        for name in NAMES.iter().chain([&AUTHORITY]) {
            let path = directory.join(name);
            match fs::read(&path) {
                Ok(content) => access.insert(name, content)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Problem::Unusable(format!("read {}: {error}", path.display()))),
            }
        }
        fs::metadata(directory)
            .map(|_| access)
            .map_err(|error| Problem::Unusable(format!("read {}: {error}", directory.display())))
    }

    /// Credentials that are at hand, not in files.
    ///
    /// # Errors
    /// Fails with [`Problem::Unusable`] if a name is not known.
    pub fn of<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Problem> {
        let mut access = Self::default();
        for (name, value) in values {
            if name != AUTHORITY && !NAMES.contains(&name) {
                return Err(Problem::Unusable(format!("{name} is not known")));
            }
            access.insert(name, value.as_bytes().to_vec())?;
        }
        Ok(access)
    }

    fn insert(&mut self, name: &str, content: Vec<u8>) -> Result<(), Problem> {
        if name == AUTHORITY {
            self.authority = Some(content);
            return Ok(());
        }
        let value = String::from_utf8(content).map_err(|_| Problem::Unusable(format!("{name} is not text")))?;
        match value.trim() {
            "" => Err(Problem::Unusable(format!("{name} is empty"))),
            value => {
                self.values.insert(name.to_owned(), value.to_owned());
                Ok(())
            }
        }
    }

    /// The value of the first of these names that there is.
    pub(crate) fn value(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.values.get(*name)).map(String::as_str)
    }

    /// PEM of the certificates that are trusted instead of the usual ones.
    pub(crate) fn authority(&self) -> Option<&[u8]> {
        self.authority.as_deref()
    }
}

/// Shows names, never a value.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("names", &self.values.keys().collect::<Vec<_>>())
            .field(AUTHORITY, &self.authority.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_secret_is_read_and_never_shown() {
        let directory = std::env::temp_dir().join(format!("backup-access-{}", std::process::id()));
        fs::create_dir_all(directory.join("..data")).expect("made");
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", "hidden-1\n"),
            ("AWS_SECRET_ACCESS_KEY", " hidden-2"),
            ("other", "hidden-3"),
            (AUTHORITY, "hidden-4"),
        ] {
            fs::write(directory.join(name), value).expect("written");
        }
        let access = Access::read(&directory).expect("read");
        assert_eq!(
            access.value(&["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"]),
            Some("hidden-1")
        );
        assert_eq!(access.value(&["AWS_SECRET_ACCESS_KEY"]), Some("hidden-2"));
        assert_eq!(access.authority(), Some(&b"hidden-4"[..]));
        let shown = format!("{access:?}");
        assert!(
            shown.contains("AWS_ACCESS_KEY_ID") && !shown.contains("hidden"),
            "{shown}"
        );
        fs::write(directory.join("AWS_SESSION_TOKEN"), "\n").expect("written");
        assert_eq!(
            Access::read(&directory),
            Err(Problem::Unusable("AWS_SESSION_TOKEN is empty".to_owned()))
        );
        fs::remove_dir_all(&directory).expect("removed");
        assert!(
            matches!(Access::read(&directory), Err(Problem::Unusable(_))),
            "no directory"
        );
    }

    #[test]
    fn an_unknown_name_is_refused() {
        assert!(Access::of([("AWS_KEY", "x")]).is_err());
    }
}
