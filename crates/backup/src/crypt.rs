//! Encryption of objects with age (<https://age-encryption.org/v1>), so that its own program opens them, too.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use age::stream::{StreamReader, StreamWriter};
use age::x25519;
use age::{DecryptError, Decryptor, EncryptError, Encryptor};
use age_core::format::{FileKey, Stanza};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::{HEADER, Problem};

/// The file of a mounted Secret with the private keys.
pub const IDENTITY: &str = "identity";
/// The first line of an encrypted object.
const FIRST_LINE: &str = "age-encryption.org/v1\n";
/// The kind of a stanza in age's header that holds something readable. Programs that do not know it pass over it.
const NOTE: &str = "clustereddatabase.io/note";
/// age breaks the lines of a stanza's content here; the last line is shorter.
const LINE: usize = 64;

/// The public keys to which objects are encrypted: any of their private keys opens them.
#[derive(Clone)]
pub struct Recipients(Vec<x25519::Recipient>);

impl Recipients {
    /// The public keys, as `age1…`; `None` if there are none.
    ///
    /// # Errors
    /// Fails with [`Problem::Key`] that names a text which is no public key.
    pub fn parse(texts: &[String]) -> Result<Option<Self>, Problem> {
        let parse = |text: &String| {
            let parsed = text.parse::<x25519::Recipient>();
            parsed.map_err(|_| {
                Problem::Key(format!(
                    "{text} is no public key of age: copy it again from `age-keygen`"
                ))
            })
        };
        let keys = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok((!keys.is_empty()).then_some(Self(keys)))
    }

    /// The public keys, as `age1…`.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// Encrypts what is written. `note` stays readable. The end is [`StreamWriter::finish`].
    pub(crate) fn encrypt<W: Write>(&self, note: Option<&[u8]>, output: W) -> io::Result<StreamWriter<W>> {
        let note = note.map(Note);
        let note = note.iter().map(|note| note as &dyn age::Recipient);
        let keys = self.0.iter().map(|key| key as &dyn age::Recipient);
        let encryptor = Encryptor::with_recipients(keys.chain(note)).map_err(io::Error::other)?;
        encryptor.wrap_output(output)
    }

    /// The encrypted object of this content.
    pub(crate) fn encrypt_all(&self, note: Option<&[u8]>, content: &[u8]) -> io::Result<Vec<u8>> {
        // Each 64 KiB get 16 bytes more.
        let room = content.len() + content.len() / 1_024 + HEADER;
        let mut writer = self.encrypt(note, Vec::with_capacity(room))?;
        writer.write_all(content)?;
        writer.finish()
    }
}

impl fmt::Debug for Recipients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

impl PartialEq for Recipients {
    fn eq(&self, other: &Self) -> bool {
        self.texts() == other.texts()
    }
}

/// Something readable in age's header.
struct Note<'a>(&'a [u8]);

impl age::Recipient for Note<'_> {
    fn wrap_file_key(&self, _: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let stanza = Stanza {
            tag: NOTE.to_owned(),
            args: Vec::new(),
            body: self.0.to_vec(),
        };
        Ok((vec![stanza], HashSet::new()))
    }
}

/// The note of an encrypted object, of which the beginning is given; `None` if it has none.
pub(crate) fn read_note(object: &[u8]) -> Option<Vec<u8>> {
    let header = object.strip_prefix(FIRST_LINE.as_bytes())?;
    let mut lines = header
        .split(|byte| *byte == b'\n')
        .skip_while(|line| line.strip_prefix(b"-> ") != Some(NOTE.as_bytes()))
        .skip(1);
    let mut digits = Vec::new();
    loop {
        let line = lines.next()?;
        digits.extend_from_slice(line);
        if line.len() < LINE {
            return STANDARD_NO_PAD.decode(digits).ok();
        }
    }
}

/// True if an object that begins so is encrypted.
pub(crate) fn is_encrypted(object: &[u8]) -> bool {
    object.starts_with(FIRST_LINE.as_bytes())
}

/// Private keys, any of which may open an object.
pub struct Identities {
    keys: Vec<x25519::Identity>,
    /// Where they come from, for errors.
    secret: String,
}

/// Shows no key.
impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} identities in Secret {}", self.keys.len(), self.secret)
    }
}

impl Identities {
    /// Reads the private keys in the mounted Secret of this name: `AGE-SECRET-KEY-1…`, one a line. Empty lines and those
    /// that begin with `#` do not count.
    ///
    /// # Errors
    /// Fails with [`Problem::Key`] that names the Secret if it is missing or has a line that is no key.
    pub fn read(mounted: &Path, secret: &str) -> Result<Self, Problem> {
        let content = fs::read_to_string(mounted.join(IDENTITY)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Problem::Key(format!(
                "Secret {secret} has no identity under the key that the spec names, or is missing: make it with the file \
                 of `age-keygen`"
            )),
            _ => Problem::Key(format!("read the identities of Secret {secret}: {error}")),
        })?;
        Self::parse(&content, secret)
    }

    /// The private keys in this text, as of [`Identities::read`].
    ///
    /// # Errors
    /// As [`Identities::read`].
    pub fn parse(content: &str, secret: &str) -> Result<Self, Problem> {
        let lines = content.lines().map(str::trim).enumerate();
        let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let parse = |(number, line): (usize, &str)| {
            let parsed = line.parse::<x25519::Identity>();
            parsed.map_err(|_| {
                Problem::Key(format!(
                    "line {} of the identities in Secret {secret} is no AGE-SECRET-KEY-1…: correct it",
                    number + 1
                ))
            })
        };
        let keys = keys.map(parse).collect::<Result<Vec<_>, _>>()?;
        match keys.is_empty() {
            true => Err(Problem::Key(format!(
                "Secret {secret} has no identity: put in the file of `age-keygen`"
            ))),
            false => Ok(Self {
                keys,
                secret: secret.to_owned(),
            }),
        }
    }

    /// Decrypts what is read.
    pub(crate) fn decrypt<R: Read>(&self, input: R) -> io::Result<StreamReader<R>> {
        let keys = self.keys.iter().map(|key| key as &dyn age::Identity);
        let opened = Decryptor::new(input).and_then(|decryptor| decryptor.decrypt(keys));
        opened.map_err(|error| match error {
            DecryptError::NoMatchingKeys => io::Error::other(format!(
                "none of the {} identities in Secret {} opens it",
                self.keys.len(),
                self.secret
            )),
            error => io::Error::other(error),
        })
    }
}

/// The content of an object that may be encrypted.
pub(crate) fn decrypt_all(object: &[u8], identities: Option<&Identities>) -> io::Result<Vec<u8>> {
    if !is_encrypted(object) {
        return Ok(object.to_vec());
    }
    let identities =
        identities.ok_or_else(|| io::Error::other("it is encrypted, and there is no identity to open it"))?;
    let mut content = Vec::with_capacity(object.len());
    identities.decrypt(object)?.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const PUBLIC: [&str; 2] = [
        "age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s",
        "age1jfc4ktc5pglw70ltux4ukk7urhytp6faalcjjncmel3c5655sccqrc8c85",
    ];
    const PRIVATE: [&str; 2] = [
        "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD",
        "AGE-SECRET-KEY-195F9EVJCKRA32L9WFG45A99SPMGPRAH77N4DSLTR7FSQ846774SSXVLLHJ",
    ];

    fn recipients(texts: &[&str]) -> Recipients {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        Recipients::parse(&texts).expect("public keys").expect("some")
    }

    fn identities(content: &str) -> Identities {
        Identities::parse(content, "key").expect("private keys")
    }

    #[test]
    fn any_of_the_keys_opens_an_object_and_no_other_does() {
        let content = vec![7; 200_000];
        let encrypted = recipients(&PUBLIC).encrypt_all(None, &content).expect("encrypted");
        for private in PRIVATE {
            let opened = decrypt_all(&encrypted, Some(&identities(private))).expect("opened");
            assert!(opened == content);
        }
        let only = recipients(&PUBLIC[..1]).encrypt_all(None, b"a").expect("encrypted");
        let file = format!("# created by age-keygen\n\n{}\n {} \n", PRIVATE[1], PRIVATE[0]);
        assert_eq!(decrypt_all(&only, Some(&identities(&file))).expect("opened"), b"a");
        let error = decrypt_all(&only, Some(&identities(PRIVATE[1]))).expect_err("another key");
        assert_eq!(error.to_string(), "none of the 1 identities in Secret key opens it");
        assert!(decrypt_all(&only, None).is_err());
        assert_eq!(decrypt_all(b"plain", None).expect("plain"), b"plain");
    }

    #[test]
    fn damage_and_a_missing_end_are_errors() {
        let encrypted = recipients(&PUBLIC[..1])
            .encrypt_all(None, &[7; 200_000])
            .expect("encrypted");
        let identities = identities(PRIVATE[0]);
        for length in [60, 150, 70_000, encrypted.len() - 1] {
            assert!(
                decrypt_all(&encrypted[..length], Some(&identities)).is_err(),
                "{length}"
            );
        }
        for at in [60, 100, 1_000, encrypted.len() - 1] {
            let mut bad = encrypted.clone();
            bad[at] ^= 1;
            assert!(decrypt_all(&bad, Some(&identities)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_note_is_read_without_a_key() {
        let keys = recipients(&[PUBLIC[0]; 8]);
        for length in [0, 1, 47, 48, 49, 300] {
            let note = vec![b'x'; length];
            let encrypted = keys.encrypt_all(Some(&note), b"a").expect("encrypted");
            assert_eq!(
                read_note(&encrypted[..HEADER.min(encrypted.len())]),
                Some(note),
                "{length}"
            );
        }
        let without = keys.encrypt_all(None, b"a").expect("encrypted");
        assert_eq!(read_note(&without), None);
        assert_eq!(read_note(b"something else"), None);
    }

    #[test]
    fn wrong_keys_are_named_and_never_shown() {
        let texts = |text: &str| Recipients::parse(&[text.to_owned()]);
        let slip = PUBLIC[0].replace("tajya", "tajyb");
        let error = texts(&slip).expect_err("its checksum does not fit");
        assert_eq!(
            error,
            Problem::Key(format!(
                "{slip} is no public key of age: copy it again from `age-keygen`"
            ))
        );
        assert_eq!(Recipients::parse(&[]), Ok(None));
        let slip = format!("{}\n{}", PRIVATE[0], &PRIVATE[1][..60]);
        let error = Identities::parse(&slip, "key").expect_err("it is cut off").to_string();
        assert_eq!(
            error,
            "line 2 of the identities in Secret key is no AGE-SECRET-KEY-1…: correct it"
        );
        let empty = Identities::parse("# nothing\n", "key")
            .expect_err("it is empty")
            .to_string();
        assert!(empty.starts_with("Secret key has no identity"), "{empty}");
        let missing = Identities::read(Path::new("/no/such"), "key")
            .expect_err("it is missing")
            .to_string();
        assert!(
            missing.starts_with("Secret key has no identity under the key"),
            "{missing}"
        );
        let shown = format!("{:?}", identities(PRIVATE[0]));
        assert_eq!(shown, "1 identities in Secret key");
    }

    /// As when an object is restored by hand.
    #[test]
    fn the_age_program_opens_an_object_with_a_note() {
        let directory = std::env::temp_dir().join(format!("backup-age-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let key = directory.join("key");
        fs::write(&key, PRIVATE[1]).expect("written");
        let encrypted = recipients(&PUBLIC)
            .encrypt_all(Some(b"note"), b"content")
            .expect("encrypted");
        let mut program = Command::new("age")
            .arg("--decrypt")
            .arg("--identity")
            .arg(&key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program `age`, of Debian's package `age`, which this test needs");
        let mut input = program.stdin.take().expect("a pipe");
        input.write_all(&encrypted).expect("written");
        drop(input);
        let output = program.wait_with_output().expect("an end");
        fs::remove_dir_all(&directory).expect("removed");
        assert!(output.status.success());
        assert_eq!(output.stdout, b"content");
    }
}
