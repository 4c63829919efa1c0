use super::*;
use crate::volume::tests::Scratch;

const SEGMENT: &str = "000000010000000000000001";

/// A database that was made without a WAL volume, with this content.
fn data(scratch: &Scratch, content: &str) -> Volume {
    let volume = scratch.volume();
    let wal = volume.pgdata().join("pg_wal");
    fs::create_dir_all(wal.join("archive_status")).expect("made");
    fs::write(wal.join(SEGMENT), content).expect("written");
    fs::write(wal.join("archive_status/x.done"), "").expect("written");
    volume
}

fn without(scratch: &Scratch) -> Volume {
    Volume::new(scratch.0.join("data"), None)
}

fn assert_moved(volume: &Volume, content: &str) {
    let (link, wal) = (
        volume.pgdata().join("pg_wal"),
        volume.wal_directory().expect("a WAL volume"),
    );
    assert_eq!(fs::read_link(&link).expect("a link"), wal);
    assert_eq!(fs::read_to_string(wal.join(SEGMENT)).expect("copied"), content);
    assert!(wal.join("archive_status/x.done").exists());
    assert!(!volume.wal_before().exists() && !mark(wal.parent().expect("a mount")).exists());
}

#[test]
fn the_log_moves_once() {
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    without(&scratch)
        .move_wal()
        .expect("nothing to do without a WAL volume");
    volume.move_wal().expect("moved");
    assert_moved(&volume, "wal");
    fs::write(volume.pgdata().join("pg_wal").join(SEGMENT), "newer").expect("written");
    volume.move_wal().expect("it is there");
    assert_moved(&volume, "newer");
    assert!(without(&scratch).move_wal().is_err(), "its WAL is missing");
}

/// Leaves what a crash leaves after this many steps.
fn break_off(volume: &Volume, steps: u32) {
    let (link, wal) = (
        volume.pgdata().join("pg_wal"),
        volume.wal_directory().expect("a WAL volume"),
    );
    fs::write(mark(wal.parent().expect("a mount")), "").expect("marked");
    fs::create_dir_all(wal).expect("made");
    fs::write(wal.join(SEGMENT), "torn").expect("written");
    if steps >= 1 {
        remove_tree(wal).expect("removed");
        copy(&link, wal).expect("copied");
    }
    if steps >= 2 {
        rename(&link, &volume.wal_before()).expect("moved");
    }
    if steps >= 3 {
        symlink(wal, &link).expect("linked");
    }
}

#[test]
fn a_move_that_is_broken_off_is_completed() {
    for steps in 0..=3 {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        break_off(&volume, steps);
        volume.move_wal().expect("completed");
        assert_moved(&volume, "wal");
    }
}

#[test]
fn what_is_written_after_a_move_was_broken_off_counts() {
    for steps in 0..=2 {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        break_off(&volume, steps);
        without(&scratch).move_wal().expect("taken back");
        fs::write(volume.pgdata().join("pg_wal").join(SEGMENT), "newer").expect("the original is in place");
        volume.move_wal().expect("moved");
        assert_moved(&volume, "newer");
    }
}

#[test]
fn a_volume_with_other_wal_or_of_another_pod_is_not_touched() {
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    let wal = volume.wal_directory().expect("a WAL volume").to_owned();
    fs::create_dir_all(&wal).expect("made");
    fs::write(wal.join(SEGMENT), "whose").expect("written");
    assert!(!volume.move_wal().expect_err("it is not ours").is_full());
    assert_eq!(fs::read_to_string(wal.join(SEGMENT)).expect("kept"), "whose");
    assert!(!volume.pgdata().join("pg_wal").is_symlink());
    let another = volume.with_wal_of_another(Some("db-2".to_owned()));
    let refused = another.prepare().expect_err("refused");
    assert!(refused.to_string().contains("that of db-2"), "{refused}");
}

#[test]
fn what_a_pod_with_the_volume_began_is_not_completed_without() {
    for place in ["staging/pgdata", "aside/1-0_0-1"] {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        volume.prepare().expect("prepared");
        let directory = scratch.0.join("data").join(place);
        fs::create_dir_all(&directory).expect("made");
        symlink(volume.wal_directory().expect("a WAL volume"), directory.join("pg_wal")).expect("linked");
        if place.starts_with("aside") {
            let going = r#"{"name":"1-0_0-1","keep":true}"#;
            fs::write(volume.agent_directory().join("setting-aside.json"), going).expect("written");
        }
        volume.move_wal().expect("nothing to do yet");
        assert!(without(&scratch).move_wal().is_err(), "{place}");
    }
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    volume.move_wal().expect("moved");
    let going = r#"{"name":"1-0_0-1","keep":true}"#;
    fs::write(volume.agent_directory().join("setting-aside.json"), going).expect("written");
    assert!(without(&scratch).move_wal().is_err(), "setting aside has just begun");
}

#[test]
fn a_copy_of_data_that_is_gone_is_removed() {
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    break_off(&volume, 0);
    remove_tree(&volume.pgdata()).expect("removed");
    volume.move_wal().expect("forgotten");
    let wal = volume.wal_directory().expect("a WAL volume");
    assert!(!wal.exists() && !mark(wal.parent().expect("a mount")).exists());
}

#[test]
fn data_without_any_log_is_named() {
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    remove_tree(&volume.pgdata().join("pg_wal")).expect("removed");
    let refused = volume.move_wal().expect_err("it is missing").to_string();
    assert!(
        refused.contains(&volume.wal_directory().expect("there").display().to_string()),
        "{refused}"
    );
}

#[test]
fn there_has_to_be_room_for_more_than_the_log() {
    assert_eq!(with_margin(0), 64 << 20);
    assert_eq!(with_margin(10 << 30), 11 << 30);
}

#[test]
fn what_does_not_fit_stays() {
    let scratch = Scratch::new();
    let volume = data(&scratch, "wal");
    let large = File::create(volume.pgdata().join("pg_wal/large")).expect("made");
    large
        .set_len(1 << 60)
        .or_else(|_| large.set_len(1 << 43))
        .expect("a sparse file");
    let refused = volume.move_wal().expect_err("no room");
    assert!(
        matches!(refused, VolumeError::NoRoom { .. }) && refused.is_full(),
        "{refused}"
    );
    assert!(!volume.pgdata().join("pg_wal").is_symlink());
    fs::remove_file(volume.pgdata().join("pg_wal/large")).expect("removed");
    volume.move_wal().expect("moved");
    assert_moved(&volume, "wal");
}
