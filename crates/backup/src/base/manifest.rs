//! PostgreSQL's manifest of a backup, and the files that are compared with it while they are unpacked.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crc_fast::CrcAlgorithm;
use serde::Deserialize;
use sha2::digest::DynDigest;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use crate::segment::hex;

/// The versions of the format that are known: PostgreSQL 13 to 16 write the first, later ones the second.
const VERSIONS: [u32; 2] = [1, 2];

/// The files of a backup that are still to come. About 200 bytes of memory for each of them.
pub(super) struct Manifest {
    left: Mutex<HashMap<PathBuf, Expected>>,
}

/// What a file must be.
#[derive(Debug)]
pub(super) struct Expected {
    bytes: u64,
    algorithm: Algorithm,
    checksum: String,
}

/// How the checksum of a file is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Algorithm {
    #[default]
    None,
    Crc32c,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Deserialize)]
struct Content {
    #[serde(rename = "PostgreSQL-Backup-Manifest-Version")]
    version: u32,
    #[serde(rename = "Files")]
    files: Vec<File>,
    #[serde(rename = "Manifest-Checksum")]
    checksum: String,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Path")]
    path: Option<String>,
    /// Hexadecimal digits of a path that is no UTF-8.
    #[serde(rename = "Encoded-Path")]
    encoded_path: Option<String>,
    #[serde(rename = "Size")]
    bytes: u64,
    #[serde(rename = "Checksum-Algorithm", default)]
    algorithm: Algorithm,
    #[serde(rename = "Checksum", default)]
    checksum: String,
}

impl Manifest {
    /// The manifest with this content.
    ///
    /// # Errors
    /// Fails if its own checksum does not fit, or it is not understood, with the words for it.
    pub(super) fn parse(content: &[u8]) -> Result<Self, String> {
        let parsed: Content = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if !VERSIONS.contains(&parsed.version) {
            return Err(format!("version {} is not known", parsed.version));
        }
        // The last line says the checksum of all lines before it.
        let text = content.strip_suffix(b"\n").unwrap_or_default();
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let found = hex(&Sha256::digest(&content[..end]));
        if found != parsed.checksum {
            return Err(format!("it has the SHA-256 {found} instead of {}", parsed.checksum));
        }
        let mut left = HashMap::with_capacity(parsed.files.len());
        for file in parsed.files {
            let (path, expected) = file.expected()?;
            if let Some(twice) = left.insert(path.clone(), expected) {
                return Err(format!("it names {} twice, first with {twice:?}", path.display()));
            }
        }
        Ok(Self { left: Mutex::new(left) })
    }

    /// What the file at this path must be. Each file comes once.
    ///
    /// # Errors
    /// Fails if the manifest does not name it, or it has come before.
    pub(super) fn take(&self, path: &Path) -> Result<Expected, String> {
        let expected = self.left().remove(path);
        expected.ok_or_else(|| "is not in the backup's manifest, or is there twice".to_owned())
    }

    /// Checks that all files have come.
    ///
    /// # Errors
    /// Names a file that has not.
    pub(super) fn is_complete(&self) -> Result<(), String> {
        let left = self.left();
        match left.keys().min() {
            None => Ok(()),
            Some(first) => Err(format!(
                "{} is in no part of the backup ({} files are missing)",
                first.display(),
                left.len()
            )),
        }
    }

    fn left(&self) -> MutexGuard<'_, HashMap<PathBuf, Expected>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
    fn expected(self) -> Result<(PathBuf, Expected), String> {
        let path = match (self.path, self.encoded_path) {
            (Some(path), None) => PathBuf::from(path),
            (None, Some(digits)) => {
                let bytes = unhex(&digits).ok_or_else(|| format!("it has the path {digits:?}"))?;
                PathBuf::from(OsString::from_vec(bytes))
            }
            _ => return Err("it has a file without a path".to_owned()),
        };
        let expected = Expected {
            bytes: self.bytes,
            algorithm: self.algorithm,
            checksum: self.checksum,
        };
        Ok((path, expected))
    }
}

/// The check of a file while its content passes.
pub(super) struct Check {
    expected: Expected,
    bytes: u64,
    /// `None` if the manifest has no checksums.
    digest: Option<Box<dyn DynDigest>>,
}

impl Expected {
    /// Begins the check.
    pub(super) fn check(self) -> Check {
        Check {
            digest: self.algorithm.digest(),
            expected: self,
            bytes: 0,
        }
    }
}

impl Algorithm {
    fn digest(self) -> Option<Box<dyn DynDigest>> {
        Some(match self {
            Self::None => return None,
            Self::Crc32c => Box::new(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi)),
            Self::Sha224 => Box::new(Sha224::new()),
            Self::Sha256 => Box::new(Sha256::new()),
            Self::Sha384 => Box::new(Sha384::new()),
            Self::Sha512 => Box::new(Sha512::new()),
        })
    }
}

impl Check {
    /// Takes the next bytes.
    pub(super) fn update(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(content);
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// Says what the file has instead of what the manifest says.
    pub(super) fn finish(self) -> Result<(), String> {
        let Expected {
            bytes,
            algorithm,
            checksum,
        } = self.expected;
        if self.bytes != bytes {
            return Err(format!(
                "has {} bytes, and the backup's manifest says {bytes}",
                self.bytes
            ));
        }
        let Some(digest) = self.digest else { return Ok(()) };
        let mut found = digest.finalize();
        if algorithm == Algorithm::Crc32c {
            // PostgreSQL writes it as it stands in the memory of usual processors.
            found.reverse();
        }
        match hex(&found) {
            found if found == checksum => Ok(()),
            found => Err(format!(
                "has the checksum {found} ({algorithm:?}), and the backup's manifest says {checksum:?}"
            )),
        }
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match pair {
        [_, _] => u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok(),
        _ => None,
    };
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15 and 17 write it, with a checksum of each kind of the text `123456789`.
    fn manifest(version: u32) -> String {
        let file = |path: &str, algorithm: &str, checksum: &str| {
            format!(
                r#"{{ {path}, "Size": 9, "Last-Modified": "2026-11-26 18:30:00 GMT", "Checksum-Algorithm": "{algorithm}", "Checksum": "{checksum}" }}"#
            )
        };
        let files = [
            r#"{ "Path": "none", "Size": 9, "Last-Modified": "2026-11-26 18:30:00 GMT" }"#.to_owned(),
            file(r#""Encoded-Path": "6261ff""#, "CRC32C", "839206e3"),
            file(
                r#""Path": "224""#,
                "SHA224",
                "9b3e61bf29f17c75572fae2e86e17809a4513d07c8a18152acf34521",
            ),
            file(
                r#""Path": "256""#,
                "SHA256",
                "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
            file(
                r#""Path": "384""#,
                "SHA384",
                "eb455d56d2c1a69de64e832011f3393d45f3fa31d6842f21af92d2fe469c499da5e3179847334a18479c8d1dedea1be3",
            ),
            file(
                r#""Path": "512""#,
                "SHA512",
                "d9e6762dd1c8eaf6d61b3c6192fc408d4d6d5f1176d0c29169bc24e71c3f274ad27fcd5811b313d681f7e55ec02d73d499c95455b6b5bb503acf574fba8ffe85",
            ),
        ];
        let text = format!(
            "{{ \"PostgreSQL-Backup-Manifest-Version\": {version},\n\"Files\": [\n{}\n],\n\"WAL-Ranges\": [\n],\n",
            files.join(",\n")
        );
        sealed(&text)
    }

    /// With the last line.
    fn sealed(text: &str) -> String {
        let checksum = hex(&Sha256::digest(text));
        format!("{text}\"Manifest-Checksum\": \"{checksum}\"}}\n")
    }

    fn parsed(version: u32) -> Manifest {
        Manifest::parse(manifest(version).as_bytes()).expect("a manifest")
    }

    fn compare(manifest: &Manifest, path: &Path, content: &[u8]) -> Result<(), String> {
        let mut check = manifest.take(path)?.check();
        content.chunks(2).for_each(|piece| check.update(piece));
        check.finish()
    }

    #[test]
    fn files_are_compared_by_each_kind_of_checksum() {
        let encoded = PathBuf::from(OsString::from_vec(b"ba\xff".to_vec()));
        let paths = ["none", "224", "256", "384", "512"].map(PathBuf::from);
        let paths: Vec<PathBuf> = paths.into_iter().chain([encoded]).collect();
        for manifest in VERSIONS.map(parsed) {
            for path in &paths {
                assert!(manifest.is_complete().is_err());
                assert_eq!(compare(&manifest, path, b"123456789"), Ok(()), "{path:?}");
                assert!(manifest.take(path).is_err(), "{path:?} comes once");
            }
            assert_eq!(manifest.is_complete(), Ok(()));
        }
        for path in &paths {
            let other = compare(&parsed(1), path, b"123456788");
            assert_eq!(other.is_ok(), path == Path::new("none"), "{path:?}: {other:?}");
            let short = compare(&parsed(1), path, b"12345678").expect_err("it is short");
            assert!(short.contains("has 8 bytes"), "{short}");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_in_the_manifest_is_an_error() {
        let good = manifest(2);
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            assert!(Manifest::parse(&bad).is_err(), "byte {at}");
        }
        let refused = |text: &str| Manifest::parse(text.as_bytes()).err().expect("an error");
        assert_eq!(refused(&manifest(3)), "version 3 is not known");
        let (body, _) = good.split_once("\"Manifest-Checksum\"").expect("a last line");
        let twice = sealed(&body.replace("\"384\"", "\"224\""));
        assert!(refused(&twice).contains("224 twice"), "{}", refused(&twice));
    }
}
