//! What is only said in a status.

use super::*;

#[test]
fn nothing_begins_and_all_that_wait_say_so_while_the_store_fails() {
    let case = Case {
        postponed: Some(Failure::Silent),
        paused: BTreeSet::from(["uid-c".to_owned()]),
        ..Case::default()
    };
    // What it says of its own try, or has said before, stays.
    let said = json!({"phase": "Pending", "conditions": [
        {"type": "Completed", "status": "False", "reason": "StoreError", "message": "", "lastTransitionTime": NOW},
    ]});
    let said = snapshot("d", "2026-11-30T11:00:00Z", &said);
    let all = || vec![pending("a"), pending("b"), pending("c"), said.clone()];
    assert_eq!(
        texts(&case.decide(Some(&tenant()), all())),
        ["postpone a Silent", "postpone b Silent"]
    );
    assert_eq!(decided(Some(&tenant()), all()), ["start a"]);
    // Those that can never be taken fail.
    let mut few = tenant();
    few.rules.max = 1;
    let found = texts(&case.decide(Some(&few), vec![pending("a"), pending("b")]));
    assert_eq!(found, ["fail b TooManySnapshots", "postpone a Silent"]);
    // While a tenant is set back, only what that waits for.
    let mut restored = tenant();
    restored.restore = Some(restore_to("old", Some("b")));
    let found = texts(&case.decide(Some(&restored), vec![pending("a"), pending("b")]));
    assert_eq!(found, ["postpone b Silent"]);
}

#[test]
fn what_an_earlier_berth_has_completed_gets_its_size_for_people_once() {
    let of_size = |size: Option<&str>| {
        let mut snapshot = completed("a", "2026-11-30T11:00:00Z");
        let status = snapshot.status.as_mut().unwrap();
        (status.bytes, status.size) = (Some(2048), size.map(ToOwned::to_owned));
        snapshot
    };
    assert_eq!(decided(Some(&tenant()), vec![of_size(None)]), ["describe size a"]);
    assert_eq!(decided(Some(&tenant()), vec![of_size(Some("2Ki"))]), [""; 0]);
    // One write at a time: the second one would be refused.
    let mut ends = of_size(None);
    ends.spec.ttl = Some("2h".into());
    let expected = ["expire a Some(2026-11-30T13:00:00Z)"];
    assert_eq!(decided(Some(&tenant()), vec![ends.clone()]), expected);
    ends.status.as_mut().unwrap().expires_at = Some(serde_json::from_value(json!("2026-11-30T13:00:00Z")).unwrap());
    assert_eq!(decided(Some(&tenant()), vec![ends]), ["describe size a"]);
}
