use super::super::tests::Scratch;
use super::*;

const SIZES: WalSizes = WalSizes {
    segment: 1 << 16,
    page: 1 << 13,
};
const SEGMENT: u64 = 1 << 16;
const PAGE: u64 = 1 << 13;

/// A segment's file whose first `pages` pages hold WAL of the segment with number `of`, all one long record.
fn segment(directory: &Path, timeline: u32, number: u64, of: u64, pages: u64) {
    let mut bytes = vec![0_u8; 1 << 16];
    for page in 0..pages {
        let begin = usize::try_from(page * PAGE).expect("small");
        set(
            &mut bytes,
            begin + PAGE_ADDRESS,
            &(of * SEGMENT + page * PAGE).to_ne_bytes(),
        );
        set(&mut bytes, begin + PAGE_REMAINDER, &u32::MAX.to_ne_bytes());
    }
    fs::write(file(directory, timeline, number), bytes).expect("written");
}

fn file(directory: &Path, timeline: u32, number: u64) -> PathBuf {
    directory.join(format!("{timeline:08X}{:08X}{number:08X}", 0))
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// In segment 3, whose pages are all written, the last one has the rest of a record, of 80 bytes, and then records of
/// these lengths and kinds.
fn records(directory: &Path, records: &[(u32, u8)]) -> PathBuf {
    segment(directory, 1, 3, 3, 8);
    let path = file(directory, 1, 3);
    let mut bytes = fs::read(&path).expect("readable");
    let page = bytes.len() - 8192;
    set(&mut bytes, page + PAGE_REMAINDER, &80_u32.to_ne_bytes());
    let (mut at, mut before) = (page + 24 + 80, 3 * SEGMENT + 5000);
    for (length, kind) in records {
        set(&mut bytes, at, &length.to_ne_bytes());
        set(&mut bytes, at + RECORD_PREVIOUS, &before.to_ne_bytes());
        set(&mut bytes, at + RECORD_KIND, &[*kind, 0]);
        before = 3 * SEGMENT + at as u64;
        at += (*length as usize).next_multiple_of(8);
    }
    fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn a_segment_is_as_large_as_those_that_are_there() {
    let scratch = Scratch::new();
    let size = |directory: &Path| segment_size(directory).expect("readable");
    assert_eq!(size(&scratch.0.join("none")), USUAL_SEGMENT);
    fs::write(scratch.0.join("00000002.history"), "1").expect("written");
    assert_eq!(size(&scratch.0), USUAL_SEGMENT);
    segment(&scratch.0, 1, 3, 3, 8);
    assert_eq!(size(&scratch.0), SEGMENT);
}

/// A member whose WAL ends with a segment asks a primary for the next one, and one whose WAL ends just before for that
/// one.
#[test]
fn in_the_last_page_it_ends_with_the_last_record() {
    let scratch = Scratch::new();
    let end = || end(&scratch.0, Lsn(3 * SEGMENT + 40), SIZES).expect("readable").0;
    let page = 4 * SEGMENT - PAGE;
    for (lengths, wanted) in [
        (vec![], page + 104),
        (vec![(50, 0x10)], page + 104 + 56),
        (vec![(50, 0), (7992, 0)], page + 104 + 56 + 7992),
        (vec![(50, 0), (8032, 0)], 4 * SEGMENT),
        (vec![(50, 0), (9000, 0)], 4 * SEGMENT),
        (vec![(50, 0), (8008, 0), (100, 0)], 4 * SEGMENT),
        (vec![(50, 0), (24, 0x40)], 4 * SEGMENT),
    ] {
        records(&scratch.0, &lengths);
        assert_eq!(end(), wanted, "{lengths:?}");
    }
}

/// A standby writes what it has received over what the file held in its former place.
#[test]
fn what_a_file_held_before_is_no_record() {
    let scratch = Scratch::new();
    let path = records(&scratch.0, &[(48, 0), (48, 0), (48, 0)]);
    let mut bytes = fs::read(&path).expect("readable");
    let third = bytes.len() - 8192 + 104 + 96;
    set(&mut bytes, third + RECORD_PREVIOUS, &(SEGMENT + 77).to_ne_bytes());
    fs::write(&path, bytes).expect("written");
    let end = end(&scratch.0, Lsn(3 * SEGMENT), SIZES).expect("readable").0;
    assert_eq!(end, 4 * SEGMENT - PAGE + 104 + 96);
}

#[test]
fn it_ends_with_the_last_page_that_was_written() {
    let scratch = Scratch::new();
    let end = |redo: u64| end(&scratch.0, Lsn(redo), SIZES).expect("readable").0;
    assert_eq!(end(3 * SEGMENT + 40), 3 * SEGMENT + 40, "no WAL");
    segment(&scratch.0, 1, 3, 3, 8);
    assert_eq!(end(3 * SEGMENT + 40), 4 * SEGMENT);
    segment(&scratch.0, 1, 4, 4, 8);
    segment(&scratch.0, 1, 5, 5, 3);
    assert_eq!(end(3 * SEGMENT + 40), 5 * SEGMENT + 3 * PAGE);
    for number in 6..20 {
        segment(&scratch.0, 1, number, number - 6, 8);
    }
    segment(&scratch.0, 1, 20, 20, 0);
    assert_eq!(end(3 * SEGMENT + 40), 5 * SEGMENT + 3 * PAGE, "renamed for later");
}

#[test]
fn it_goes_on_with_another_timeline_and_not_across_a_gap() {
    let scratch = Scratch::new();
    let end = |redo: u64| end(&scratch.0, Lsn(redo), SIZES).expect("readable").0;
    segment(&scratch.0, 1, 3, 3, 8);
    segment(&scratch.0, 1, 4, 0, 8);
    segment(&scratch.0, 2, 4, 4, 8);
    segment(&scratch.0, 2, 6, 6, 8);
    fs::write(scratch.0.join("00000002.history"), "").expect("written");
    assert_eq!(end(3 * SEGMENT), 5 * SEGMENT);
    assert_eq!(end(2 * SEGMENT), 2 * SEGMENT, "what is needed first is not there");
}

#[test]
fn names_tell_where_a_segment_begins() {
    assert_eq!(begin_of("000000010000000200000003", 16 << 20), Some(0x2_0300_0000));
    for other in ["00000002.history", "000000010000000200000003.partial", "archive_status"] {
        assert_eq!(begin_of(other, 16 << 20), None, "{other}");
    }
}
