//! Members of tars that another program made.

use tar::{Builder, EntryType, Header};

use super::*;

fn header(path: &str, kind: EntryType, bytes: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_path(path).expect("a path");
    header.set_entry_type(kind);
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_cksum();
    header
}

fn example() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    let mut add = |path: &str, content: &[u8]| {
        tar.append(&header(path, EntryType::Regular, content.len() as u64), content)
            .expect("a member");
    };
    add("backup_label", b"label");
    add("empty", b"");
    add("block", &[7; 512]);
    tar.append(&header("base", EntryType::Directory, 0), &b""[..])
        .expect("a member");
    let mut long = Header::new_gnu();
    long.set_size(3);
    long.set_mode(0o600);
    tar.append_data(&mut long, "long/".repeat(40) + "name", &b"abc"[..])
        .expect("a member");
    tar.into_inner().expect("a tar")
}

struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl Source for Pieces<'_> {
    async fn tar(&mut self) -> std::io::Result<Option<Bytes>> {
        Ok(self.0.next().map(Bytes::copy_from_slice))
    }

    async fn manifest(&mut self) -> std::io::Result<Option<Bytes>> {
        Ok(None)
    }
}

async fn read(tar: &[u8]) -> Result<Vec<(Option<String>, usize, Vec<u8>)>, BaseError> {
    let mut pieces = Pieces(tar.chunks(300));
    let mut reader = Reader::new(&mut pieces);
    let mut members = Vec::new();
    while let Some(member) = reader.next().await? {
        let mut content = Vec::new();
        let mut left = member.padded_bytes();
        while left > 0 {
            let piece = reader.piece(left.min(100)).await?;
            left -= piece.len() as u64;
            content.extend_from_slice(&piece);
        }
        content.truncate(member.bytes as usize);
        members.push((member.path, member.blocks.len() / BLOCK, content));
    }
    assert_eq!(reader.raw_bytes(), tar.len() as u64);
    reader.drain().await?;
    Ok(members)
}

#[tokio::test]
async fn members_are_read() {
    let named = |path: &str, content: &[u8]| (Some(path.to_owned()), 1, content.to_vec());
    let members = read(&example()).await.expect("members");
    let expected = [
        named("backup_label", b"label"),
        named("empty", b""),
        named("block", &[7; 512]),
        named("base", b""),
        // The name, its header, and the file's header.
        (None, 3, b"abc".to_vec()),
    ];
    assert_eq!(members, expected);
}

#[tokio::test]
async fn a_tar_that_is_cut_off_is_an_error() {
    let tar = example();
    for length in (0..tar.len()).step_by(100) {
        let error = read(&tar[..length]).await.expect_err("it is cut off");
        assert!(matches!(error, BaseError::Tar(_)), "{length}: {error}");
    }
}

#[tokio::test]
async fn damage_of_a_header_is_an_error() {
    for at in [0, 100, 124, 156, 257] {
        let mut tar = example();
        tar[at] ^= 1;
        let error = read(&tar).await.expect_err("it is damaged");
        assert!(matches!(error, BaseError::Tar(_)), "{at}: {error}");
    }
}

#[tokio::test]
async fn what_postgresql_never_writes_is_refused() {
    for kind in [
        EntryType::Fifo,
        EntryType::Block,
        EntryType::XGlobalHeader,
        EntryType::GNUSparse,
    ] {
        let mut tar = Builder::new(Vec::new());
        tar.append(&header("a", kind, 0), &b""[..]).expect("a member");
        let tar = tar.into_inner().expect("a tar");
        let error = read(&tar).await.expect_err("it is refused");
        assert!(error.to_string().contains("a member of kind"), "{error}");
    }
}

#[test]
fn numbers_of_both_kinds() {
    assert_eq!(number(b"00000000017\0"), Some(15));
    assert_eq!(number(b"     17 \0\0\0\0"), Some(15));
    assert_eq!(number(b"\x80\0\0\0\0\0\0\x03\0\0\0\x01"), Some(3 << 32 | 1));
    assert_eq!(number(b"\x80\0\x01\0\0\0\0\x03\0\0\0\x01"), None);
    assert_eq!(number(b"-0000000017\0"), None);
    assert_eq!(number(b"00000000018\0"), None);
}
