use super::*;
use serde_json::json;

fn stored(name: &str, version: u64) -> Stored {
    let annotations = json!({"berth.dev/origin-uid": "t"});
    let version = version.to_string();
    Stored::new(
        &json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version, "annotations": annotations}}),
    )
}

#[test]
fn older_states_never_replace_newer_ones() {
    let store = Store::default();
    let name = Name::new("a", "b");
    store.watched(name.clone(), stored("b", 5));
    store.written(name.clone(), stored("b", 9));
    store.watched(name.clone(), stored("b", 7));
    assert_eq!(store.get(&name).unwrap().version, 9);
}

#[test]
fn bytes_are_those_of_the_objects_that_exist() {
    let store = Store::default();
    let (one, other) = (Name::new("a", "b"), Name::new("a", "c"));
    store.watched(one.clone(), stored("b", 5).of_bytes(100));
    store.watched(other.clone(), stored("c", 6).of_bytes(1000));
    assert_eq!(store.bytes(), 1100);
    store.written(one.clone(), stored("b", 7).of_bytes(300));
    store.watched(one.clone(), stored("b", 6).of_bytes(200));
    assert_eq!(store.bytes(), 1300, "an older state does not count");
    store.gone(&other, 8);
    assert_eq!(store.bytes(), 300);
    store.list_begins();
    store.list_ends();
    assert_eq!(store.bytes(), 0);
}

#[test]
fn only_versions_that_are_still_to_come_are_expected() {
    let store = Store::default();
    let name = Name::new("a", "b");
    store.watched(name.clone(), stored("b", 5));
    store.expect("u", 4, 5);
    assert!(!store.is_expected("u", 5), "it was reported before it was expected");
    store.expect("u", 5, 7);
    store.expect("u", 7, 9);
    assert!(!store.is_expected("v", 6), "that is another object");
    assert!(store.is_expected("u", 6) && store.is_expected("u", 9));
    assert!(!store.is_expected("u", 9), "once only");
    store.written(name.clone(), stored("b", 8));
    assert_eq!(store.get(&name).unwrap().version, 5, "what is expected counts as seen");
    store.expect("u", 9, 11);
    store.expect("u", 12, 14);
    assert!(!store.is_expected("u", 12), "12 came from somebody else");
    assert!(store.is_expected("u", 14) && !store.is_expected("u", 15));
}

#[test]
fn an_object_that_a_list_did_not_know_comes_back() {
    let store = Store::default();
    let name = Name::new("a", "b");
    store.written(name.clone(), stored("b", 7));
    store.expect("u", 0, 7);
    store.list_begins();
    assert_eq!(store.list_ends(), [name]);
    assert!(!store.is_expected("u", 7));
}

#[test]
fn a_late_response_does_not_bring_back_what_was_deleted() {
    let store = Store::default();
    let name = Name::new("a", "b");
    store.deleted(&name, stored("b", 12));
    store.written(name.clone(), stored("b", 11));
    assert!(!store.contains(&name));
    store.written(name.clone(), stored("b", 13));
    assert!(store.contains(&name));
}

#[test]
fn an_object_that_is_gone_leaves_no_last_state() {
    let store = Store::default();
    let name = Name::new("a", "b");
    store.watched(name.clone(), stored("b", 5));
    store.gone(&name, 12);
    let (_, last) = store.get_or_take_tombstone(&name);
    assert!(last.is_none(), "whatever annotations it had");
    store.written(name.clone(), stored("b", 11));
    assert!(!store.contains(&name));
}

#[test]
fn a_last_state_is_for_who_finds_no_object() {
    let store = Store::default();
    let name = Name::new("a", "b");
    let known = || {
        let (object, last) = store.get_or_take_tombstone(&name);
        (object.map(|object| object.version), last.map(|last| last.version))
    };
    store.watched(name.clone(), stored("b", 5));
    assert_eq!(known(), (Some(5), None));
    store.deleted(&name, stored("b", 7));
    assert_eq!(known(), (None, Some(7)));
    assert_eq!(known(), (None, None), "once");
    store.deleted(&name, stored("b", 7));
    store.watched(name.clone(), stored("b", 9));
    assert_eq!(known(), (Some(9), None));
    store.forget(&name);
    assert_eq!(known(), (None, None), "that of an earlier object is forgotten");
}

#[test]
fn an_object_that_goes_while_it_is_read_leaves_its_last_state() {
    let name = Name::new("a", "b");
    for _ in 0..1000 {
        let store = Store::default();
        store.watched(name.clone(), stored("b", 5));
        let last = std::thread::scope(|threads| {
            threads.spawn(|| store.deleted(&name, stored("b", 7)));
            loop {
                let (object, last) = store.get_or_take_tombstone(&name);
                if object.is_none() {
                    return last;
                }
            }
        });
        assert!(last.is_some(), "it was lost with the object");
    }
}

#[test]
fn objects_that_cannot_be_read_count_until_they_can_or_are_gone() {
    let store = Store::default();
    assert!(store.note_unreadable("u") && store.note_unreadable("v"));
    assert!(!store.note_unreadable("u"), "that is known");
    store.watched(Name::new("a", "b"), stored("b", 5));
    assert_eq!(store.unreadable(), 1, "u can be read");
    store.note_gone("v");
    assert_eq!(store.unreadable(), 0);
    for number in 0..=MOST_UNREADABLE {
        store.note_unreadable(&number.to_string());
    }
    assert_eq!(store.unreadable(), MOST_UNREADABLE);
    store.list_begins();
    assert_eq!(store.unreadable(), 0);
}

#[test]
fn a_list_removes_what_it_does_not_name_except_what_was_written_meanwhile() {
    let store = Store::default();
    let (kept, gone, fresh) = (Name::new("a", "kept"), Name::new("a", "gone"), Name::new("a", "fresh"));
    store.watched(kept.clone(), stored("kept", 1));
    store.watched(gone.clone(), stored("gone", 2));
    store.list_begins();
    store.written(fresh.clone(), stored("fresh", 8));
    store.watched(kept.clone(), stored("kept", 1));
    assert!(!store.is_listed());
    assert_eq!(store.list_ends(), [gone]);
    assert!(store.is_listed() && store.contains(&kept) && store.contains(&fresh));
}

#[test]
fn nobody_waits_for_a_list_that_does_not_end() {
    let store = Store::default();
    assert!(store.stop_waiting_for_list());
    assert_eq!(store.unavailable(), Some(Unavailable::NotListed));
    assert!(!store.stop_waiting_for_list(), "once");
    for (is_listed, unavailable) in [(true, None), (false, Some(Unavailable::NotServed))] {
        let store = Store::default();
        store.set_unavailable(unavailable);
        if is_listed {
            store.set_listed();
        }
        assert!(!store.stop_waiting_for_list());
        assert_eq!(store.unavailable(), unavailable);
    }
}

#[test]
fn host_objects_are_found_by_their_own_name() {
    let store = Store::default();
    store.watched(Name::new("a", "b"), stored("b-xyz", 1));
    assert_eq!(store.tenant_name("b-xyz"), Some(Name::new("a", "b")));
    store.deleted(&Name::new("a", "b"), stored("b-xyz", 2));
    assert_eq!(store.tenant_name("b-xyz"), None);
    let (_, last) = store.get_or_take_tombstone(&Name::new("a", "b"));
    assert_eq!(last.unwrap().version, 2);
}
