//! What pools have.

use super::*;

const POOL: &str = "/apis/berth.dev/v1alpha1/hostnodepools/h100";

impl Fixture {
    /// A node of the pool that no tenant has, with eight GPUs.
    fn put_free_node(&self, name: &str, created: i64) {
        let metadata = json!({"name": name, "labels": {"pool": "h100"}, "creationTimestamp": at(created).to_string()});
        let status = json!({"allocatable": {"nvidia.com/gpu": "8"}});
        self.host
            .insert(&node_path(name), json!({"metadata": metadata, "status": status}));
    }

    fn record_of_pool(&self) -> Option<UsageRecord> {
        let mut records = self.all_records();
        records.retain(|record| record.spec.tenant.is_pool());
        assert!(records.len() <= 1, "{records:?}");
        records.pop()
    }

    fn gpus_of_pool(&self) -> i64 {
        sum(&self.record_of_pool().unwrap(), UsageResource::Gpu)
    }
}

#[tokio::test]
async fn nodes_of_pools_count_from_the_first_pass_on_and_never_twice() {
    let mut fixture = Fixture::new();
    fixture.put_free_node("gpu-1", -3600);
    fixture.pass().await.unwrap();
    assert_eq!(fixture.record_of_pool(), None, "nothing says what the pool had before");
    fixture.advance_to(300);
    fixture.pass().await.unwrap();
    assert_seconds(fixture.gpus_of_pool(), 8, 300);
    let record = fixture.record_of_pool().unwrap();
    let owner = &record.spec.tenant;
    assert_eq!((owner.namespace.as_str(), owner.name.as_str()), ("", "h100"));
    assert!(record.spec.in_use);
    for line in &record.spec.lines {
        assert_eq!(
            (line.pool_name.as_deref(), line.gpu_product.as_deref()),
            (Some("h100"), Some("H100"))
        );
        assert_eq!((line.mode, &line.class_name, &line.project_name), (None, &None, &None));
    }
    // It is killed. Meanwhile a node comes.
    fixture.restart();
    fixture.put_free_node("gpu-2", 600);
    fixture.advance_to(1200);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.gpus_of_pool(), 8, 1200 + 600);
    fixture.restart();
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.gpus_of_pool(), 8, 1200 + 600);
}

#[tokio::test]
async fn a_node_counts_for_its_pool_whether_or_not_a_tenant_has_it() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), 0);
    let mut node = fixture.host.get(&node_path("gpu-1")).unwrap();
    node["metadata"]["labels"]["pool"] = "h100".into();
    fixture.host.insert(&node_path("gpu-1"), node);
    fixture.pass().await.unwrap();
    fixture.advance_to(300);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.gpus_of_pool(), 8, 300);
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 300);
}

/// Its tenant's record names the pool that it was assigned from. Otherwise one pool would have less than its tenants, and the other a node that looks as if nobody had it.
#[tokio::test]
async fn a_node_whose_labels_change_while_a_tenant_has_it_counts_for_the_pool_that_it_was_assigned_from() {
    let mut fixture = Fixture::new();
    let spec = json!({"nodeSelector": {"pool": "b200"}, "gpuResourceName": "nvidia.com/gpu", "gpuProduct": "B200"});
    let pool = json!({"metadata": {"name": "b200", "uid": "b200"}, "spec": spec});
    fixture.host.insert("/apis/berth.dev/v1alpha1/hostnodepools/b200", pool);
    fixture.assign("gpu-1", ("vision", UID), 0);
    fixture.pass().await.unwrap();
    let mut node = fixture.host.get(&node_path("gpu-1")).unwrap();
    node["metadata"]["labels"]["pool"] = "b200".into();
    fixture.host.insert(&node_path("gpu-1"), node);
    fixture.advance_to(300);
    fixture.pass().await.unwrap();
    let record = fixture.record_of_pool().unwrap();
    assert_eq!(record.spec.tenant.name, "h100");
    assert_seconds(fixture.gpus_of_pool(), 8, 300);
    // No tenant has it any more, nor is it being cleaned: the labels decide.
    fixture.free("gpu-1");
    fixture.advance_to(600);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert!(!fixture.record_of_pool().unwrap().spec.in_use);
}

#[tokio::test]
async fn a_record_ends_with_its_pool_and_shared_pools_have_none() {
    let mut fixture = Fixture::new();
    fixture.put_free_node("gpu-1", 0);
    fixture.pass().await.unwrap();
    fixture.advance_to(300);
    fixture.pass().await.unwrap();
    let pool = fixture.host.get(POOL).unwrap();
    fixture.host.remove(POOL);
    fixture.advance_to(600);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    let record = fixture.record_of_pool().unwrap();
    assert!(!record.spec.in_use);
    assert_seconds(sum(&record, UsageResource::Node), 1, 300);
    // Another one of the same nodes.
    let mut shared = pool;
    shared["metadata"]["uid"] = "other".into();
    shared["spec"] = json!({"nodeSelector": {"pool": "h100"}, "modes": ["Shared"]});
    fixture.host.insert(POOL, shared);
    fixture.pass().await.unwrap();
    fixture.advance_to(900);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_eq!(fixture.record_of_pool(), Some(record));
}
