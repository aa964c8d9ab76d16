//! The checks of the host cluster itself. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use kube::ResourceExt;

use super::CheckResult;
use super::checks::difference;
use super::facts::Facts;
use super::latency::etcd_quantile;
use super::{network, tolerations};
use crate::node;

/// The 99th percentile of requests to etcd, in seconds, above which API servers are slow, and above which leases get lost.
const SLOW_ETCD: f64 = 0.25;
const FAILING_ETCD: f64 = 1.0;
/// Differences of clocks in seconds: a header has whole seconds and travels; tokens and leases suffer from more.
const CLOCK_WARNING: i64 = 5;
const CLOCK_PROBLEM: i64 = 60;
/// Seconds that a webhook may take by default. Longer ones delay every write that they see.
const SLOW_WEBHOOK: i32 = 10;
/// Annotation of the default StorageClass.
const DEFAULT_STORAGE_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// How many names a message lists.
const MOST_NAMES: usize = 5;

pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    [
        network::check(facts),
        vec![check_etcd(facts), check_clock(facts)],
        check_webhooks(facts),
        vec![
            check_runtime_classes(facts),
            check_device_plugins(facts),
            check_storage(facts),
        ],
        tolerations::check(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn check_etcd(facts: &Facts) -> CheckResult {
    const CHECK: &str = "etcd";
    let fix = "see the metrics and the disks of the host's etcd";
    match &facts.etcd_ready {
        Ok(true) => {}
        Ok(false) => return CheckResult::problem(CHECK, "the API server says that it is not ready", fix),
        Err(error) => return CheckResult::unknown(CHECK, error),
    }
    let metrics = match &facts.metrics {
        Ok(metrics) => metrics,
        Err(error) => {
            return CheckResult::unknown(CHECK, &format!("it is ready, and its latency is not known: {error}"));
        }
    };
    let Some(quantile) = etcd_quantile(metrics, 0.99) else {
        return CheckResult::ok(CHECK, "it is ready; the API server has not measured its latency");
    };
    let took = if quantile.is_finite() {
        format!("99 % of the requests take at most {quantile} s")
    } else {
        "more than 1 % of the requests take longer than what is measured".to_owned()
    };
    if quantile > FAILING_ETCD {
        CheckResult::problem(CHECK, took, fix)
    } else if quantile > SLOW_ETCD {
        CheckResult::warning(CHECK, took, fix)
    } else {
        CheckResult::ok(CHECK, took)
    }
}

fn check_clock(facts: &Facts) -> CheckResult {
    const CHECK: &str = "clock";
    let host = match &facts.host_time {
        Ok(host) => *host,
        Err(error) => return CheckResult::unknown(CHECK, error),
    };
    let seconds = difference(facts.now, host);
    let message = format!("this machine and the host differ by {seconds} s");
    let fix = "synchronize the clocks (NTP)";
    if seconds > CLOCK_PROBLEM {
        CheckResult::problem(CHECK, message, fix)
    } else if seconds > CLOCK_WARNING {
        CheckResult::warning(CHECK, message, fix)
    } else {
        CheckResult::ok(CHECK, message)
    }
}

/// What both kinds of webhooks have.
struct Webhook<'a> {
    name: String,
    client: &'a WebhookClientConfig,
    policy: Option<&'a String>,
    timeout: Option<i32>,
}

/// All webhooks of a host that refuse a write if they do not answer.
fn failing_webhooks(facts: &Facts) -> Result<Vec<Webhook<'_>>, String> {
    let validating = facts.validating.as_ref().map_err(Clone::clone)?;
    let mutating = facts.mutating.as_ref().map_err(Clone::clone)?;
    let validating = validating.iter().flat_map(|object| {
        let webhooks = object.webhooks.iter().flatten();
        webhooks.map(|webhook| Webhook {
            name: format!(
                "ValidatingWebhookConfiguration {}, webhook {}",
                object.name_any(),
                webhook.name
            ),
            client: &webhook.client_config,
            policy: webhook.failure_policy.as_ref(),
            timeout: webhook.timeout_seconds,
        })
    });
    let mutating = mutating.iter().flat_map(|object| {
        let webhooks = object.webhooks.iter().flatten();
        webhooks.map(|webhook| Webhook {
            name: format!(
                "MutatingWebhookConfiguration {}, webhook {}",
                object.name_any(),
                webhook.name
            ),
            client: &webhook.client_config,
            policy: webhook.failure_policy.as_ref(),
            timeout: webhook.timeout_seconds,
        })
    });
    let all = validating.chain(mutating);
    Ok(all
        .filter(|webhook| webhook.policy.is_none_or(|policy| policy == "Fail"))
        .collect())
}

fn check_webhooks(facts: &Facts) -> Vec<CheckResult> {
    const CHECK: &str = "webhooks";
    let webhooks = match failing_webhooks(facts) {
        Ok(webhooks) => webhooks,
        Err(error) => return vec![CheckResult::unknown(CHECK, &error)],
    };
    let served = match served_services(facts) {
        Ok(served) => served,
        Err(error) => return vec![CheckResult::unknown(CHECK, &error)],
    };
    let mut results = Vec::new();
    for Webhook {
        name, client, timeout, ..
    } in &webhooks
    {
        if let Some(service) = &client.service
            && !served.contains(&(service.namespace.clone(), service.name.clone()))
        {
            results.push(CheckResult::problem(
                CHECK,
                format!(
                    "{name} refuses writes, because its Service {}/{} has no ready endpoint",
                    service.namespace, service.name
                ),
                "repair what serves it, or delete the configuration",
            ));
        }
        if let Some(seconds) = timeout.filter(|seconds| *seconds > SLOW_WEBHOOK) {
            results.push(CheckResult::warning(
                CHECK,
                format!("{name} may delay each write by {seconds} s"),
                "set a shorter timeoutSeconds",
            ));
        }
    }
    if results.is_empty() {
        results.push(CheckResult::ok(
            CHECK,
            format!("{} with failurePolicy Fail are served", webhooks.len()),
        ));
    }
    results
}

/// Namespace and name of each Service with a ready endpoint.
fn served_services(facts: &Facts) -> Result<BTreeSet<(String, String)>, String> {
    let slices = facts.endpoints.as_ref().map_err(Clone::clone)?;
    let served = slices.iter().filter(|slice| {
        let mut endpoints = slice.endpoints.iter().flatten();
        // As in the API: unknown is ready.
        endpoints.any(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        })
    });
    let names = served.filter_map(|slice| {
        let service = slice.labels().get("kubernetes.io/service-name")?;
        Some((slice.namespace()?, service.clone()))
    });
    Ok(names.collect())
}

fn check_runtime_classes(facts: &Facts) -> CheckResult {
    const CHECK: &str = "runtime classes";
    let (classes, existing) = match (&facts.classes, &facts.runtime_classes) {
        (Ok(classes), Ok(existing)) => (classes, existing),
        (Err(error), _) | (_, Err(error)) => return CheckResult::unknown(CHECK, error),
    };
    let mut missing = Vec::new();
    for class in classes {
        for name in class.spec.sync.pods.runtime_classes.iter().filter(|name| *name != "*") {
            if existing.iter().all(|found| found.name_any() != *name) {
                missing.push(format!("{name} (TenantClass {})", class.name_any()));
            }
        }
    }
    if missing.is_empty() {
        return CheckResult::ok(CHECK, "those that classes name exist");
    }
    let message = format!("classes name RuntimeClasses that do not exist: {}", join_some(&missing));
    CheckResult::problem(
        CHECK,
        message,
        "create them, or take them out of spec.sync.pods.runtimeClasses",
    )
}

fn check_device_plugins(facts: &Facts) -> CheckResult {
    const CHECK: &str = "GPU nodes";
    let (pools, nodes) = match (&facts.pools, &facts.nodes) {
        (Ok(pools), Ok(nodes)) => (pools, nodes),
        (Err(error), _) | (_, Err(error)) => return CheckResult::unknown(CHECK, error),
    };
    let (mut without, mut total) = (Vec::new(), 0);
    for pool in pools {
        let Some(resource) = &pool.spec.gpu_resource_name else {
            continue;
        };
        let in_pool = nodes.iter().filter(|node| node::is_selected_by(node, pool));
        for found in in_pool {
            total += 1;
            if node::count_gpus(found, resource) == 0 {
                without.push(format!("{} (no {resource})", found.name_any()));
            }
        }
    }
    if without.is_empty() {
        return CheckResult::ok(CHECK, format!("{total} nodes of pools have their GPUs"));
    }
    let message = format!("nodes of GPU pools without usable GPUs: {}", join_some(&without));
    CheckResult::problem(
        CHECK,
        message,
        "see the device plugin's pods on these nodes; a node that is scrubbed has none for a while",
    )
}

fn check_storage(facts: &Facts) -> CheckResult {
    const CHECK: &str = "storage";
    let classes = match &facts.storage_classes {
        Ok(classes) => classes,
        Err(error) => return CheckResult::unknown(CHECK, error),
    };
    let default: Vec<String> = classes
        .iter()
        .filter(|class| {
            class
                .annotations()
                .get(DEFAULT_STORAGE_CLASS)
                .is_some_and(|value| value == "true")
        })
        .map(ResourceExt::name_any)
        .collect();
    match default.as_slice() {
        [] => CheckResult::warning(
            CHECK,
            "there is no default StorageClass",
            "annotate one, if tenants use PersistentVolumeClaims without a class",
        ),
        [one] => CheckResult::ok(CHECK, format!("the default StorageClass is {one}")),
        several => CheckResult::warning(
            CHECK,
            format!("several StorageClasses are the default: {}", join_some(several)),
            "keep the annotation on one of them",
        ),
    }
}

/// The first names, and how many more there are.
pub(super) fn join_some(names: &[String]) -> String {
    let shown = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
