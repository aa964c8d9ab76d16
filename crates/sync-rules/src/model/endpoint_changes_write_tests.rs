//! When Services may be changed and made on the host.

use super::*;

#[test]
fn services_that_a_release_changes_wait_and_none_is_closed() {
    let mut fixture = Fixture::new(AT_ONCE);
    fixture.changes.pace = EndpointChanges::new(1, fixture.now).pace;
    let written_in = |fixture: &mut Fixture| {
        let mut count = 0;
        for number in 0..AT_ONCE {
            let name = service(number);
            let is_done = fixture.changes.written[&name].applied == 1;
            if is_done || !fixture.changes.may_write(&name) {
                continue;
            }
            fixture.changes.begin_write(&name);
            let closed = fixture.changes.set_written(&name, written(0, 1), true);
            assert!(closed.is_empty(), "{closed:?}");
            count += 1;
        }
        count
    };
    assert_eq!(written_in(&mut fixture), 30, "half of what a syncer starts with");
    // Pods have the other half.
    for number in AT_ONCE..AT_ONCE + 30 {
        let app = format!("app-{number}");
        fixture.add(&service(number), &[("app", app.as_str())]);
        assert!(fixture.flip(&app, &[("app", app.as_str())]).is_empty());
    }
    fixture.pass(10);
    assert_eq!(written_in(&mut fixture), 0, "pods come first");
    fixture.pass(30);
    assert_eq!(written_in(&mut fixture), 10, "one a second");
    fixture.pass(ALLOWANCE_SECONDS);
    assert_eq!(written_in(&mut fixture), AT_ONCE - 40);
    assert_eq!(fixture.changes.count_closed(), 0);
}

#[test]
fn a_service_is_changed_although_pods_use_up_all_that_grows() {
    let mut fixture = Fixture::new(AT_ONCE);
    let quiet = Name::new("other", "quiet");
    fixture.add(&quiet, &[("app", "quiet")]);
    let flips = |fixture: &mut Fixture| {
        fixture.pass(10);
        let closed = fixture.flip("a", &[("app", "a")]);
        assert!(!closed.contains(&quiet), "{closed:?}");
    };
    (0..200).for_each(|_| flips(&mut fixture));
    let mut rounds = 0;
    while !fixture.changes.may_write(&quiet) {
        rounds += 1;
        assert!(rounds < 10, "it waits for ever");
        flips(&mut fixture);
    }
    fixture.changes.begin_write(&quiet);
    assert!(fixture.changes.set_written(&quiet, written(0, 1), true).is_empty());
    // What flips pays for it.
    flips(&mut fixture);
}

#[test]
fn what_does_not_count_need_not_wait_to_be_written() {
    let mut fixture = Fixture::new(2);
    let [counted, closed] = [service(0), service(1)];
    fixture.changes.begin_write(&counted);
    fixture.changes.close(&closed);
    fixture.use_up();
    for name in [&counted, &closed, &Name::new("team", "not-on-the-host")] {
        assert!(fixture.changes.may_write(name), "{name}");
    }
    fixture.pass(10);
    assert!(!fixture.changes.may_write(&counted), "it counts again");
}

#[test]
fn services_that_are_made_have_an_allowance_of_their_own() {
    let mut fixture = Fixture::new(1);
    for number in 0..AT_ONCE {
        assert!(fixture.changes.may_create(), "asking takes nothing");
        assert!(fixture.changes.may_create());
        let name = Name::new("team", &format!("new-{number}"));
        assert!(fixture.changes.set_written(&name, written(1, 1), true).is_empty());
        fixture.delete(&name);
    }
    assert!(!fixture.changes.may_create());
    assert!(fixture.flip("a", &[("app", "a")]).is_empty(), "others go on");
    // What was asked about in time is made even so, and made up for.
    fixture.changes.set_written(&service(2), written(1, 1), true);
    fixture.pass(1);
    assert!(!fixture.changes.may_create());
    fixture.pass(1);
    assert!(fixture.changes.may_create());
}

#[test]
fn a_service_that_is_deleted_and_made_again_and_again_is_counted() {
    let mut fixture = Fixture::new(1);
    let mut uid = 0;
    // The deletion was seen, or not.
    while fixture.changes.may_create() {
        uid += 1;
        assert!(uid <= 600, "it is not counted");
        if uid % 2 == 0 {
            fixture.changes.set_written(&service(0), None, true);
        }
        assert!(
            fixture
                .changes
                .set_written(&service(0), written(uid, 0), true)
                .is_empty()
        );
    }
    assert_eq!(uid, 600);
    let mut fixture = Fixture::new(0);
    fixture.use_up();
    fixture.pass(1);
    fixture.changes.set_written(&service(0), written(1, 0), false);
    assert!(fixture.changes.may_create(), "what is listed is not made");
}
