use super::*;

#[test]
fn pauses_double_and_have_a_greatest_length() {
    let seconds: Vec<u64> = (0..9).map(|attempts| retry_pause(attempts).as_secs()).collect();
    assert_eq!(seconds, [5, 5, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(retry_pause(u32::MAX), MOST_RETRY);
}

#[test]
fn damage_differs_from_a_store_that_does_not_answer() {
    let reason = |error: &ReadError| describe_damage(error).reason;
    assert_eq!(reason(&ReadError::Damaged("a checksum".into())), "SnapshotDamaged");
    assert_eq!(reason(&ReadError::NotFound), "SnapshotDamaged");
    assert_eq!(reason(&ReadError::NewerFormat(7)), "SnapshotOfNewerBerth");
    let store = berth_snapshots::StoreError::Unreachable("no answer".into());
    assert_eq!(reason(&ReadError::Store(store)), "StoreError");
}
