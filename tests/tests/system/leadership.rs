//! Replicas of control: one leads at a time, also when it cannot reach the host's API server.

use berth_local::proxy::Proxy;
use berth_runtime::{
    client,
    lease::{LeaseError, LeaseRequest, Times, run_as_leader},
};
use berth_tests::{
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Config, api::DeleteParams};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NAME: &str = "leadership";
const NAMESPACE: &str = "default";

/// How often a replica that had lost its lease would have ended its process.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// One that leads as long as it exists.
struct Leading(Arc<AtomicUsize>);

impl Leading {
    fn begin(leaders: &Arc<AtomicUsize>) -> Self {
        assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two replicas lead");
        Self(Arc::clone(leaders))
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Replica {
    stop: CancellationToken,
    waits: CancellationToken,
    leads: CancellationToken,
    ended: JoinHandle<Result<(), LeaseError>>,
}

impl Replica {
    fn start(config: Config, identity: &str, leaders: &Arc<AtomicUsize>) -> Self {
        let request = LeaseRequest {
            namespace: NAMESPACE.into(),
            name: NAME.into(),
            identity: identity.into(),
            end_process: || {
                ENDED.fetch_add(1, Ordering::SeqCst);
            },
            times: Times::default(),
        };
        let [stop, waits, leads] = std::array::from_fn(|_| CancellationToken::new());
        let (own_stop, own_waits, own_leads) = (stop.clone(), waits.clone(), leads.clone());
        let leaders = Arc::clone(leaders);
        let ended = tokio::spawn(async move {
            let work = async |stop: CancellationToken| {
                let _leading = Leading::begin(&leaders);
                own_leads.cancel();
                stop.cancelled().await;
            };
            run_as_leader(config, &request, &own_stop, || own_waits.cancel(), work).await
        });
        Self {
            stop,
            waits,
            leads,
            ended,
        }
    }

    async fn until_it_leads(&self) {
        until_true("the replica leads", SOON, async || self.leads.is_cancelled()).await;
    }
}

pub(crate) async fn a_leader_that_cannot_renew_its_lease_ends_before_another_one_leads(host: Arc<TestCluster>) {
    let kubeconfig = host.kubeconfig_for("replica", &["system:masters"]).unwrap();
    let server = host.server().trim_start_matches("https://").to_owned();
    let proxy = Proxy::to(server.clone()).await.unwrap();
    let direct = client::config_from_text(&kubeconfig).await.unwrap();
    let through_proxy = kubeconfig.replace(&server, &proxy.address());
    let through_proxy = client::config_from_text(&through_proxy).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(host.client.clone(), NAMESPACE);
    let leaders = Arc::new(AtomicUsize::new(0));

    let first = Replica::start(through_proxy, "first", &leaders);
    first.until_it_leads().await;
    let second = Replica::start(direct.clone(), "second", &leaders);
    // Its requests hang, as when a network breaks.
    proxy.cut(true);
    second.until_it_leads().await;
    assert!(matches!(first.ended.await.unwrap(), Err(LeaseError::Lost)));

    // Who stops gives the lease back.
    let third = Replica::start(direct.clone(), "third", &leaders);
    second.stop.cancel();
    second.ended.await.unwrap().unwrap();
    third.until_it_leads().await;
    assert_eq!(leaders.load(Ordering::SeqCst), 1);

    // Nobody leads without a lease. Who waits makes it again.
    let fourth = Replica::start(direct, "fourth", &leaders);
    fourth.waits.cancelled().await;
    leases.delete(NAME, &DeleteParams::default()).await.unwrap();
    fourth.until_it_leads().await;
    assert!(matches!(third.ended.await.unwrap(), Err(LeaseError::Lost)));
    until_true("who lost the lease ends", SOON, async || {
        ENDED.load(Ordering::SeqCst) == 2
    })
    .await;
    fourth.stop.cancel();
    fourth.ended.await.unwrap().unwrap();
    assert_eq!(ENDED.load(Ordering::SeqCst), 2, "who gave it back did not");
    leases.delete(NAME, &DeleteParams::default()).await.unwrap();
}
