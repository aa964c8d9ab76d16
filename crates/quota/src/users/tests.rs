use super::*;
use berth_api::{ALL_USERS, PLATFORM_USER, PODS, SERVICE_ACCOUNTS, UNKNOWN_USER, UserLimit, UserQuota};
use proptest::prelude::*;

const GPU: &str = "nvidia.com/gpu";

fn quota(user: &str, limits: &[(&str, u32)]) -> UserQuota {
    UserQuota {
        user: user.into(),
        limits: limits
            .iter()
            .map(|(resource, limit)| UserLimit {
                resource: (*resource).into(),
                limit: *limit,
                limit_per_tenant: None,
            })
            .collect(),
    }
}

fn pod(uid: &str, user: &str, gpus: u64, since: i64) -> UserPod {
    UserPod {
        uid: uid.into(),
        user: user.into(),
        amounts: [(PODS.to_owned(), 1), (GPU.to_owned(), gpus)].into(),
        since,
        ..UserPod::default()
    }
}

fn admitted(pod: UserPod) -> UserPod {
    UserPod {
        is_admitted: true,
        ..pod
    }
}

fn member(pod: UserPod, gang: &str, size: u32) -> UserPod {
    UserPod {
        gang: Some(UserGang {
            name: gang.into(),
            size,
        }),
        ..pod
    }
}

fn names(outcome: &UserOutcome) -> Vec<&str> {
    outcome.admitted.iter().map(String::as_str).collect()
}

#[test]
fn the_oldest_that_fit_start_and_the_others_say_why_not() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 8)])]);
    let pods = [
        admitted(pod("a0", "alice", 4, 0)),
        pod("a3", "alice", 2, 3),
        pod("a1", "alice", 8, 1),
        pod("a2", "alice", 2, 2),
        pod("a4", "alice", 1, 4),
        pod("b", "bob", 8, 5),
        pod("none", "alice", 0, 9),
    ];
    let outcome = decide_users(&limits, &pods);
    assert_eq!(names(&outcome), ["a2", "a3", "b", "none"]);
    let waiting = &outcome.waiting["a4"];
    assert_eq!((waiting.limit, waiting.requested, waiting.is_of_gang), (8, 1, false));
    let alice = &outcome.users["alice"];
    assert_eq!((alice.used[GPU], alice.used[PODS], alice.waiting), (8, 4, 2));
    assert_eq!(outcome.users["bob"].waiting, 0);
}

#[test]
fn one_tenant_does_not_take_all_of_a_limit() {
    let mut of_all = quota(ALL_USERS, &[(GPU, 8), (PODS, 9)]);
    of_all.limits[0].limit_per_tenant = Some(6);
    let limits = UserLimits::new(&[of_all]);
    let in_tenant = |tenant: &str, pod: UserPod| UserPod {
        tenant: tenant.into(),
        ..pod
    };
    // The admin of b creates pods in the name of alice, and no node is for them.
    let pods = [
        in_tenant("b", admitted(pod("b0", "alice", 4, 0))),
        in_tenant("b", pod("b1", "alice", 4, 1)),
        in_tenant("b", pod("b2", "alice", 2, 2)),
        in_tenant("a", pod("a0", "alice", 2, 3)),
        in_tenant("a", pod("a1", "alice", 1, 4)),
        in_tenant("b", pod("bob", "bob", 6, 5)),
    ];
    let outcome = decide_users(&limits, &pods);
    assert_eq!(names(&outcome), ["a0", "b2", "bob"]);
    assert_eq!(outcome.users["alice"].used[GPU], 8);
    let why = |pod: &str| (outcome.waiting[pod].limit, outcome.waiting[pod].is_per_tenant);
    assert_eq!((why("b1"), why("a1")), ((6, true), (8, false)));
    let text = outcome.waiting["b1"].to_string();
    assert!(text.contains("user alice in this tenant together may have 6"), "{text}");
    // Nor a gang, with pods that do not exist yet.
    let gang = in_tenant("b", member(pod("m0", "alice", 1, 1), "train", 3));
    let outcome = decide_users(&limits, &[pods[0].clone(), gang]);
    assert_eq!(
        (outcome.waiting["m0"].requested, outcome.waiting["m0"].is_per_tenant),
        (3, true)
    );
}

#[test]
fn priority_comes_before_age() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(PODS, 1)])]);
    let important = UserPod {
        priority: 10,
        ..pod("late", "alice", 0, 9)
    };
    let outcome = decide_users(&limits, &[pod("early", "alice", 0, 1), important]);
    assert_eq!(names(&outcome), ["late"]);
}

#[test]
fn an_entry_of_a_user_replaces_that_of_all() {
    let limits = UserLimits::new(&[
        quota("alice", &[(PODS, 1)]),
        quota(ALL_USERS, &[(GPU, 1)]),
        quota("system:serviceaccount:ci:runner", &[(GPU, 4)]),
    ]);
    assert!(limits.of("alice").is_some_and(|limits| !limits.contains_key(GPU)));
    assert!(limits.of("bob").is_some_and(|limits| limits[GPU] == 1));
    assert_eq!(UserLimits::new(&[quota("alice", &[(PODS, 1)])]).of("bob"), None);
    assert_eq!(limits.of(PLATFORM_USER), None);
    for (created_by, user) in [
        (None, UNKNOWN_USER),
        (Some(""), UNKNOWN_USER),
        (Some("bob"), "bob"),
        (
            Some("system:serviceaccount:ci:runner"),
            "system:serviceaccount:ci:runner",
        ),
        (Some("system:serviceaccount:ci:other"), SERVICE_ACCOUNTS),
        (Some("system:serviceaccount:dev:other"), SERVICE_ACCOUNTS),
    ] {
        assert_eq!(limits.find_user(created_by), user);
    }
}

#[test]
fn a_gang_starts_together_or_not_at_all() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 8)])]);
    let gang = |uid: &str, size: u32| member(pod(uid, "alice", 4, 1), "train", size);
    let outcome = decide_users(&limits, &[gang("m0", 2), gang("m1", 2), pod("late", "alice", 1, 2)]);
    assert_eq!(names(&outcome), ["m0", "m1"]);
    let outcome = decide_users(&limits, &[gang("m0", 3), gang("m1", 3), pod("late", "alice", 1, 2)]);
    assert_eq!(names(&outcome), ["late"], "the third of the gang would not fit");
    assert_eq!(
        (outcome.waiting["m0"].requested, outcome.waiting["m0"].is_of_gang),
        (12, true)
    );
    let outcome = decide_users(&limits, &[gang("m0", 2), pod("late", "alice", 1, 2)]);
    assert_eq!(names(&outcome), ["m0"], "the rest of the gang has its place");
    let outcome = decide_users(
        &limits,
        &[admitted(gang("m0", 2)), pod("old", "alice", 4, 0), gang("m1", 2)],
    );
    assert_eq!(names(&outcome), ["m1"], "what a part of a gang waits for is first");
}

#[test]
fn nobody_keeps_a_gang_of_another_user_from_starting() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 4)])]);
    let gang = |uid: &str, user: &str, gpus: u64, size: u32| member(pod(uid, user, gpus, 1), "train", size);
    // Pods of bob name the gang, a size without end, and more than bob may have.
    let own = [gang("m0", "alice", 2, 2), gang("m1", "alice", 2, 2)];
    for foreign in [gang("b", "bob", 1, 10_000), gang("b", "bob", 5, 2)] {
        let outcome = decide_users(&limits, &[own[0].clone(), own[1].clone(), foreign]);
        assert_eq!(names(&outcome), ["m0", "m1"]);
        assert_eq!(outcome.waiting["b"].user, "bob");
    }
    // Nor does a pod that runs in it let a part of it start.
    let running = admitted(gang("b", "bob", 1, 3));
    let outcome = decide_users(&limits, &[gang("m0", "alice", 3, 4), running]);
    assert_eq!(
        outcome.waiting["m0"].requested, 9,
        "its own rest: 4 pods are missing two"
    );
}

#[test]
fn pods_of_several_users_are_a_gang_if_all_exist() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 2)])]);
    let gang = |uid: &str, user: &str| member(pod(uid, user, 1, 1), "train", 4);
    let pods = [
        gang("a0", "alice"),
        gang("a1", "alice"),
        gang("b0", "bob"),
        gang("b1", "bob"),
    ];
    assert_eq!(names(&decide_users(&limits, &pods)), ["a0", "a1", "b0", "b1"]);
}

#[test]
fn messages_say_the_limit_and_what_to_do() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 8)])]);
    let pods = [
        admitted(pod("a", "alice", 8, 0)),
        pod("b", "alice", 1, 1),
        pod("c", "alice", 9, 2),
    ];
    let outcome = decide_users(&limits, &pods);
    let text = outcome.waiting["b"].to_string();
    assert!(text.contains("user alice together may have 8 nvidia.com/gpu"), "{text}");
    assert!(text.contains("Delete what is no longer needed"), "{text}");
    let never = outcome.waiting["c"].to_string();
    assert!(never.contains("requests 9 nvidia.com/gpu"), "{never}");
    assert!(never.contains("request less"), "{never}");
}

#[test]
fn users_that_wait_are_listed_first() {
    let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, 8)])]);
    let pods = [
        admitted(pod("1", "idle", 1, 0)),
        admitted(pod("2", "busy", 7, 0)),
        admitted(pod("3", "over", 9, 0)),
        pod("4", "over", 1, 0),
    ];
    let outcome = decide_users(&limits, &pods);
    let (listed, others) = list_users(&limits, &outcome, 2);
    let names: Vec<&str> = listed.iter().map(|user| user.user.as_str()).collect();
    assert_eq!((names, others), (vec!["over", "busy"], 1));
    assert_eq!((listed[0].resources[0].used, listed[0].waiting_pods), (9, 1));
    assert!(!listed[0].message.is_empty() && listed[1].message.is_empty());
}

fn any_pods() -> impl Strategy<Value = Vec<UserPod>> {
    let one = (0..3_usize, 0..5_u64, any::<bool>(), 0..4_u32, 0..3_i32, 0..10_i64);
    proptest::collection::vec(one, 0..40).prop_map(|all| {
        let pods = all.into_iter().enumerate();
        pods.map(|(index, (user, gpus, is_admitted, gang, priority, since))| UserPod {
            is_admitted,
            priority,
            gang: (gang > 1).then(|| UserGang {
                name: format!("g{gang}"),
                size: gang,
            }),
            ..pod(&format!("{index:02}"), ["alice", "bob", "carol"][user], gpus, since)
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn no_decision_exceeds_a_limit(pods in any_pods(), gpus in 0..20_u32, most in 0..20_u32) {
        let limits = UserLimits::new(&[quota("alice", &[(GPU, gpus)]), quota(ALL_USERS, &[(GPU, 6), (PODS, most)])]);
        let outcome = decide_users(&limits, &pods);
        for (user, of_user) in &outcome.users {
            let before = |resource: &str| -> u64 {
                let own = pods.iter().filter(|pod| pod.user == *user && pod.is_admitted);
                own.map(|pod| pod.amounts[resource]).sum()
            };
            for (resource, limit) in limits.of(user).into_iter().flatten() {
                let used = of_user.used.get(resource).copied().unwrap_or_default();
                prop_assert!(used <= (*limit).max(before(resource)), "{user}: {used} {resource}");
            }
        }
        // Each pod that waited is decided about, once.
        for pod in &pods {
            let (starts, waits) = (outcome.admitted.contains(&pod.uid), outcome.waiting.contains_key(&pod.uid));
            prop_assert_eq!(starts != waits, !pod.is_admitted);
        }
    }

    #[test]
    fn a_decision_is_stable(pods in any_pods(), gpus in 0..20_u32) {
        let limits = UserLimits::new(&[quota(ALL_USERS, &[(GPU, gpus)])]);
        let first = decide_users(&limits, &pods);
        let mut shuffled = pods.clone();
        shuffled.reverse();
        prop_assert_eq!(&first, &decide_users(&limits, &shuffled), "the order in which pods are listed does not matter");
        let mut later = pods.clone();
        for pod in &mut later {
            pod.is_admitted |= first.admitted.contains(&pod.uid);
        }
        // Gangs of which a part was admitted elsewhere may go on.
        if pods.iter().all(|pod| pod.gang.is_none()) {
            prop_assert!(decide_users(&limits, &later).admitted.is_empty());
        }
    }

    #[test]
    fn nobody_waits_for_a_limit_that_has_room(pods in any_pods()) {
        let limits = UserLimits::new(&[quota("alice", &[(GPU, 4)])]);
        let outcome = decide_users(&limits, &pods);
        for pod in pods.iter().filter(|pod| pod.user != "alice" && !pod.is_admitted) {
            prop_assert!(outcome.admitted.contains(&pod.uid), "{} has no limit", pod.user);
        }
    }
}
