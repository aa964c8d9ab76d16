use super::*;
use berth_api::{ResourceLimit, TenantClusterSpec};

const CLUSTER_IP: ControlPlaneServiceType = ControlPlaneServiceType::ClusterIp;

#[test]
fn limits_by_name_are_allowed_as_far_as_they_are_reserved() {
    let with_cpu = |quantity: Option<u32>| {
        let limit = |quantity: u32| ResourceLimit {
            resource: "requests.cpu".into(),
            quantity: quantity.into(),
        };
        TenantLimits {
            resources: quantity.map(limit).into_iter().collect(),
            ..TenantLimits::default()
        }
    };
    let reserved = |limits: &TenantLimits| Verdict::Reserved {
        reservation: QuotaReservation {
            project_name: "vision".into(),
            reserved: TreeResource::listed_in([limits])
                .into_iter()
                .filter_map(|resource| Some((resource.as_str().to_owned(), resource.reserved_by(limits, CLUSTER_IP)?)))
                .collect(),
            ..QuotaReservation::default()
        },
        over: OverQuota::new(),
    };
    let verdict = reserved(&with_cpu(Some(64)));
    let allows = |cpu: Option<u32>| verdict.allows(&with_cpu(cpu), CLUSTER_IP);
    assert!(allows(Some(64)) && allows(Some(32)));
    assert!(!allows(Some(65)));
    assert!(!allows(None), "no limit is more than 64");
    assert!(!reserved(&with_cpu(None)).allows(&with_cpu(Some(1)), CLUSTER_IP));
    for service in [ControlPlaneServiceType::NodePort, ControlPlaneServiceType::LoadBalancer] {
        assert!(!verdict.allows(&with_cpu(Some(64)), service), "it is not reserved");
    }
}

#[test]
fn tenants_that_wait_are_not_woken_by_each_change_of_what_others_use() {
    let ledger = QuotaLedger::default();
    let waiting = |kept: Option<QuotaReservation>, message: &str| {
        let verdict = Verdict::Waiting {
            kept,
            over: OverQuota::new(),
            reason: "QuotaExceeded",
            message: message.into(),
        };
        BTreeMap::from([("a".to_owned(), verdict)])
    };
    let replace = |verdicts| ledger.replace(verdicts, &ledger.basis()).unwrap();
    let a = BTreeSet::from(["a".to_owned()]);
    assert_eq!(replace(waiting(None, "3 of 3 are used")), a);
    assert!(replace(waiting(None, "4 of 4 are used")).is_empty());
    let Verdict::Waiting { message, .. } = &ledger.verdicts()["a"] else {
        panic!("it waits")
    };
    assert_eq!(message, "4 of 4 are used");
    let kept = QuotaReservation {
        project_name: "vision".into(),
        ..QuotaReservation::default()
    };
    assert_eq!(replace(waiting(Some(kept), "4 of 4 are used")), a);
    assert_eq!(replace(BTreeMap::new()), a);
}

fn reserved(pods: u64, above_limits: u64) -> BTreeMap<String, Verdict> {
    let reservation = QuotaReservation {
        project_name: "vision".into(),
        reserved: [("pods".to_owned(), pods)].into(),
        above_limits: [("pods".to_owned(), above_limits)].into(),
        ..QuotaReservation::default()
    };
    let verdict = Verdict::Reserved {
        reservation,
        over: OverQuota::new(),
    };
    BTreeMap::from([("a".to_owned(), verdict)])
}

fn pods(amount: u64) -> Amounts {
    Amounts::from([(TreeResource::Pods, amount)])
}

#[test]
fn a_reconcile_that_began_meanwhile_keeps_what_is_reserved() {
    let (ledger, (stores, _writers)) = (QuotaLedger::default(), crate::testing::StoreWriters::new());
    ledger.replace(reserved(10, 8), &ledger.basis()).unwrap();
    ledger.report_at_most("a", pods(2));
    let basis = ledger.basis();
    assert_eq!(basis.at_most("a"), pods(2));
    let mut cluster = TenantCluster::new("a", TenantClusterSpec::default());
    cluster.metadata.uid = Some("a".into());
    ledger.begin_reconcile(&stores, &cluster, jiff::Timestamp::now());
    assert_eq!(ledger.replace(reserved(2, 0), &basis), None);
    assert_eq!(ledger.verdicts(), reserved(10, 8));
    // A decision that takes nothing from it is kept.
    assert!(ledger.replace(reserved(10, 8), &basis).unwrap().is_empty());
    assert_eq!(
        ledger.basis().at_most("a"),
        Amounts::new(),
        "not known during a reconcile"
    );
    // What the reconcile reports is another report, even if it says the same.
    ledger.report_at_most("a", pods(2));
    assert_eq!(ledger.replace(reserved(2, 0), &basis), None);
    assert!(ledger.replace(reserved(2, 0), &ledger.basis()).is_some());
}

#[test]
fn a_lowered_quota_wakes_a_tenant_that_waits() {
    let ledger = QuotaLedger::default();
    let waiting = |over: OverQuota| {
        let verdict = Verdict::Waiting {
            kept: None,
            over,
            reason: "QuotaExceeded",
            message: "4 of 4 are reserved".into(),
        };
        BTreeMap::from([("a".to_owned(), verdict)])
    };
    ledger.replace(waiting(OverQuota::new()), &ledger.basis()).unwrap();
    let over = OverQuota::from([(TreeResource::Pods, 2)]);
    let woken = ledger.replace(waiting(over.clone()), &ledger.basis()).unwrap();
    assert_eq!(woken, BTreeSet::from(["a".to_owned()]));
    assert_eq!(ledger.verdicts()["a"].over(), over);
}

#[test]
fn a_measurement_counts_as_a_change_only_if_it_differs() {
    let ledger = QuotaLedger::default();
    assert_eq!(ledger.measured().number, 0);
    assert!(ledger.set_measured(MeasuredUse::new()), "nothing was known before");
    let pods = TenantUse {
        amounts: [(TreeResource::Pods, 3)].into(),
        ..TenantUse::default()
    };
    let measured = MeasuredUse::from([("a".to_owned(), pods)]);
    assert!(ledger.set_measured(measured.clone()));
    assert!(!ledger.set_measured(measured.clone()));
    let last = ledger.measured();
    assert_eq!((last.number, last.changes), (3, 2));
    assert_eq!(*last.tenants, measured);
}

#[test]
fn only_a_report_that_gives_something_back_is_a_reason_to_decide() {
    let ledger = QuotaLedger::default();
    ledger.replace(reserved(10, 8), &ledger.basis()).unwrap();
    assert!(!ledger.report_at_most("a", pods(10)));
    assert!(ledger.report_at_most("a", pods(9)));
    assert!(!ledger.report_at_most("unknown", pods(0)));
    ledger.replace(reserved(2, 0), &ledger.basis()).unwrap();
    assert!(!ledger.report_at_most("a", pods(0)));
}
