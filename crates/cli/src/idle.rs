//! `berth idle`: which workloads leave their GPUs idle. All of this is in the status of the TenantClusters; here it is
//! summed up.

use std::collections::BTreeMap;
use std::process::ExitCode;

use berth_api::text::one_line;
use berth_api::{IdleLastStep, IdleReclaimMode, IdleStatus, IdleWorkload, StoppedOwner, TenantCluster, UnknownGpus};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{ObjectFormat, format_table, print_named};
use crate::tenant::{self, TenantName, resource_name};

/// What `idle` prints. Programs read it: fields are only ever added.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdleView {
    totals: Totals,
    workloads: Vec<WorkloadView>,
    /// What Berth stopped because its GPUs were idle, and nobody has started since.
    stopped: Vec<StoppedView>,
    /// GPUs of which it is not known whether they are idle, by reason.
    unknown: Vec<UnknownGpus>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Totals {
    /// GPUs of all tenants whose class reclaims idle GPUs.
    gpus: u64,
    #[serde(rename = "idleGPUs")]
    idle_gpus: u64,
    #[serde(rename = "unknownGPUs")]
    unknown_gpus: u64,
    #[serde(rename = "optedOutGPUs")]
    opted_out_gpus: u64,
    /// GPU-hours of the idle workloads since they are idle, without the time for which that was not known.
    #[serde(rename = "idleGPUHours")]
    idle_gpu_hours: f64,
    /// What these cost, by currency.
    worth: BTreeMap<String, String>,
    /// Idle workloads of which only the sums say something: a status lists the largest ones.
    unlisted_workloads: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadView {
    /// `namespace/name` of the tenant.
    tenant: String,
    mode: IdleReclaimMode,
    last_step: IdleLastStep,
    #[serde(rename = "idleGPUHours")]
    idle_gpu_hours: f64,
    worth: Option<String>,
    #[serde(flatten)]
    workload: IdleWorkload,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoppedView {
    /// `namespace/name` of the tenant.
    tenant: String,
    #[serde(flatten)]
    owner: StoppedOwner,
}

pub(crate) async fn run(host: &HostArguments, format: ObjectFormat) -> Result<ExitCode, Error> {
    let given = host.namespace.as_deref();
    let tenants = tenant::list_visible(&host.connect().await?, given).await?.tenants;
    let view = build_view(&tenants, Timestamp::now());
    let idle = tenants.iter().filter(|tenant| has_idle_gpus(tenant));
    let names: Vec<String> = idle.map(|tenant| resource_name(&tenant.name_any())).collect();
    print_named(&view, &names, describe, format)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a tenant has idle GPUs, or stopped workloads that had some.
fn has_idle_gpus(tenant: &TenantCluster) -> bool {
    let idle = tenant.status.as_ref().and_then(|status| status.idle.as_ref());
    idle.is_some_and(|idle| !idle.workloads.is_empty() || !idle.stopped_owners.is_empty())
}

fn build_view(tenants: &[TenantCluster], now: Timestamp) -> IdleView {
    let mut view = IdleView::default();
    let mut unknown: BTreeMap<String, u32> = BTreeMap::new();
    let mut seconds = 0_u64;
    // By currency, seconds times thousandths: one class may have another price than the next.
    let mut priced: BTreeMap<String, u128> = BTreeMap::new();
    for tenant in tenants {
        let Some(idle) = tenant.status.as_ref().and_then(|status| status.idle.as_ref()) else {
            continue;
        };
        let totals = &mut view.totals;
        totals.gpus += u64::from(idle.gpus);
        totals.idle_gpus += u64::from(idle.idle_gpus);
        totals.opted_out_gpus += u64::from(idle.opted_out_gpus);
        for UnknownGpus { reason, gpus } in &idle.unknown_gpus {
            totals.unknown_gpus += u64::from(*gpus);
            *unknown.entry(reason.clone()).or_default() += gpus;
        }
        let name = TenantName::of(tenant).to_string();
        view.stopped.extend(idle.stopped_owners.iter().map(|owner| StoppedView {
            tenant: name.clone(),
            owner: owner.clone(),
        }));
        let gpu_seconds = idle.gpu_seconds(now);
        seconds = seconds.saturating_add(gpu_seconds);
        if let Some(price) = &idle.gpu_hour_price
            && let Some(thousandths) = price.thousandths()
        {
            *priced.entry(price.currency.clone()).or_default() += u128::from(thousandths) * u128::from(gpu_seconds);
        }
        totals.unlisted_workloads += idle
            .unlisted
            .as_ref()
            .map_or(0, |unlisted| u64::from(unlisted.workloads));
        for workload in &idle.workloads {
            let gpu_seconds = workload.gpu_seconds(now);
            view.workloads
                .push(build_workload_view(name.clone(), idle, workload, gpu_seconds));
        }
    }
    view.workloads
        .sort_by(|a, b| b.idle_gpu_hours.total_cmp(&a.idle_gpu_hours));
    view.totals.idle_gpu_hours = hours(seconds);
    // Divided once: what each workload loses by rounding adds up.
    view.totals.worth = priced
        .into_iter()
        .map(|(currency, priced)| (currency, format_thousandths(priced / 3600)))
        .collect();
    view.unknown = unknown
        .into_iter()
        .map(|(reason, gpus)| UnknownGpus { reason, gpus })
        .collect();
    view
}

fn build_workload_view(tenant: String, idle: &IdleStatus, workload: &IdleWorkload, gpu_seconds: u64) -> WorkloadView {
    WorkloadView {
        tenant,
        mode: idle.mode,
        last_step: idle.last_step,
        idle_gpu_hours: hours(gpu_seconds),
        worth: idle.gpu_hour_price.as_ref().and_then(|price| price.worth(gpu_seconds)),
        workload: workload.clone(),
    }
}

/// Hours with one decimal.
fn hours(seconds: u64) -> f64 {
    let tenths = seconds / 360;
    f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
}

fn format_thousandths(thousandths: u128) -> String {
    let hundredths = (thousandths + 5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn describe(view: &IdleView) -> String {
    let Totals {
        gpus,
        idle_gpus,
        unknown_gpus,
        opted_out_gpus,
        idle_gpu_hours,
        worth,
        unlisted_workloads,
    } = &view.totals;
    let mut summary = format!(
        "{idle_gpus} of {gpus} GPUs are idle, {idle_gpu_hours:.1} GPU-hours so far; {unknown_gpus} unknown, {opted_out_gpus} excepted"
    );
    for (currency, amount) in worth {
        summary = format!("{summary}; worth {amount} {currency}");
    }
    let mut parts = vec![one_line(&summary)];
    if !view.workloads.is_empty() {
        let rows: Vec<_> = view.workloads.iter().map(row).collect();
        parts.push(format_table(
            [
                "TENANT",
                "WORKLOAD",
                "OWNER",
                "GPUS",
                "IDLE SINCE",
                "GPU-HOURS",
                "WORTH",
                "STEP",
                "NEXT STEP",
                "LAST STEP",
                "MODE",
            ],
            &rows,
        ));
    }
    if *unlisted_workloads > 0 {
        parts.push(format!(
            "and {unlisted_workloads} more idle workloads, which are in the sums"
        ));
    }
    if !view.stopped.is_empty() {
        let rows: Vec<_> = view
            .stopped
            .iter()
            .map(|StoppedView { tenant, owner }| {
                [
                    tenant.clone(),
                    owner.path(),
                    owner.gpus.to_string(),
                    owner.stopped_at.0.to_string(),
                ]
            })
            .collect();
        parts.push(format_table(["TENANT", "STOPPED", "GPUS", "SINCE"], &rows));
    }
    if !view.unknown.is_empty() {
        let rows: Vec<_> = view
            .unknown
            .iter()
            .map(|unknown| [unknown.reason.clone(), unknown.gpus.to_string()])
            .collect();
        parts.push(format_table(["UNKNOWN BECAUSE", "GPUS"], &rows));
    }
    parts.join("\n\n")
}

fn row(view: &WorkloadView) -> [String; 11] {
    let workload = &view.workload;
    let next = match &workload.next_step_at {
        Some(at) => at.0.to_string(),
        None if workload.paused => "paused: metrics are missing".to_owned(),
        None => "-".to_owned(),
    };
    [
        view.tenant.clone(),
        format!("{} {}/{}", workload.kind, workload.namespace, workload.name),
        workload
            .owner
            .as_ref()
            .map_or_else(|| "-".to_owned(), |owner| format!("{}/{}", owner.kind, owner.name)),
        workload.gpus.to_string(),
        workload.idle_since.0.to_string(),
        format!("{:.1}", view.idle_gpu_hours),
        view.worth.clone().unwrap_or_else(|| "-".to_owned()),
        workload.step.as_str().to_owned(),
        next,
        format!("{:?}", view.last_step),
        format!("{:?}", view.mode),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tenant(idle: &serde_json::Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team"}, "spec": {}, "status": {"idle": idle},
        }))
        .unwrap()
    }

    fn view() -> IdleView {
        let idle = json!({
            "mode": "DryRun", "lastStep": "StopOwner", "gpus": 24, "idleGPUs": 9, "optedOutGPUs": 0,
            "unknownGPUs": [{"reason": "StaleSeries", "gpus": 8}],
            "gpuHourPrice": {"amount": "2.50", "currency": "EUR"},
            "workloads": [
                {"kind": "Pod", "namespace": "ml", "name": "lab", "gpus": 1, "idleSince": "1970-01-01T00:00:00Z",
                 "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "paused": true},
                {"kind": "Job", "namespace": "ml", "name": "train", "gpus": 8,
                 "owner": {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}, "idleSince": "1970-01-01T01:00:00Z",
                 "step": "Reclaimable", "stepSince": "1970-01-01T02:00:00Z"},
            ],
            "stoppedOwners": [{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "web", "uid": "u",
                "gpus": 4, "stoppedAt": "1970-01-01T01:30:00Z"}],
        });
        build_view(&[tenant(&idle)], Timestamp::from_second(7200).unwrap())
    }

    #[test]
    fn hours_and_worth_are_summed_up() {
        let view = view();
        assert_eq!(
            (view.totals.gpus, view.totals.idle_gpus, view.totals.unknown_gpus),
            (24, 9, 8)
        );
        assert_eq!(format!("{:.1}", view.totals.idle_gpu_hours), "10.0");
        assert_eq!(view.totals.worth["EUR"], "25.00");
        assert_eq!(view.workloads[0].workload.name, "train", "the most GPU-hours first");
    }

    #[test]
    fn time_for_which_nothing_is_known_does_not_count_and_workloads_that_are_not_listed_do() {
        let idle = json!({
            "mode": "Enforce", "lastStep": "EvictPods", "gpus": 800, "idleGPUs": 706, "optedOutGPUs": 0,
            "workloads": [
                {"kind": "Pod", "namespace": "ml", "name": "gap", "gpus": 6, "idleSince": "1970-01-01T00:00:00Z",
                 "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "unknownSeconds": 3600},
                {"kind": "Pod", "namespace": "ml", "name": "unseen", "gpus": 1, "idleSince": "1970-01-01T00:00:00Z", "paused": true,
                 "step": "Warned", "stepSince": "1970-01-01T01:00:00Z", "unknownSince": "1970-01-01T00:30:00Z"},
            ],
            "unlisted": {"workloads": 700, "gpus": 700, "idleSince": "1970-01-01T01:30:00Z"},
        });
        let view = build_view(&[tenant(&idle)], Timestamp::from_second(7200).unwrap());
        // 6 GPUs for one hour, one for half an hour, and 700 for half an hour.
        assert_eq!(format!("{:.1}", view.totals.idle_gpu_hours), "356.5");
        let rows = view.workloads.iter().map(|view| format!("{:.1}", view.idle_gpu_hours));
        assert_eq!(rows.collect::<Vec<_>>(), ["6.0", "0.5"]);
        let text = describe(&view);
        assert!(text.contains("and 700 more idle workloads"), "{text}");
    }

    #[test]
    fn what_rounding_takes_from_each_workload_is_in_the_sum() {
        let workload = |name: &str| {
            json!({"kind": "Pod", "namespace": "ml", "name": name, "gpus": 1, "idleSince": "1970-01-01T00:00:00Z",
                "step": "Warned", "stepSince": "1970-01-01T00:00:00Z"})
        };
        let names: Vec<String> = (0..60).map(|number| format!("lab-{number}")).collect();
        let workloads: Vec<_> = names.iter().map(|name| workload(name)).collect();
        let idle = json!({
            "mode": "DryRun", "lastStep": "EvictPods", "gpus": 60, "idleGPUs": 60, "optedOutGPUs": 0,
            "gpuHourPrice": {"amount": "0.059", "currency": "EUR"}, "workloads": workloads,
        });
        // A minute each: less than a thousandth of them.
        let view = build_view(&[tenant(&idle)], Timestamp::from_second(60).unwrap());
        assert_eq!(view.totals.worth["EUR"], "0.06");
    }

    #[test]
    fn tenants_with_idle_or_stopped_workloads_are_named() {
        let idle = |idle: &serde_json::Value| has_idle_gpus(&tenant(idle));
        let nothing = json!({"mode": "DryRun", "lastStep": "StopOwner", "gpus": 8, "idleGPUs": 0, "optedOutGPUs": 0});
        assert!(!idle(&nothing) && !idle(&json!(null)));
        let mut stopped = nothing;
        stopped["stoppedOwners"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "web",
            "uid": "u", "gpus": 4, "stoppedAt": "1970-01-01T01:30:00Z"}]);
        assert!(idle(&stopped));
    }

    #[test]
    fn the_table_says_what_comes_next() {
        let text = describe(&view());
        assert!(
            text.starts_with("9 of 24 GPUs are idle, 10.0 GPU-hours so far"),
            "{text}"
        );
        assert!(text.contains("Job ml/train") && text.contains("20.00 EUR"), "{text}");
        assert!(text.contains("paused: metrics are missing"), "{text}");
        assert!(text.contains("StaleSeries"), "{text}");
        assert!(text.contains("Job/train") && text.contains("StopOwner"), "{text}");
        assert!(
            text.contains("Deployment/ml/web") && text.contains("1970-01-01T01:30:00Z"),
            "{text}"
        );
    }

    #[test]
    fn tenants_without_reclaim_are_not_shown() {
        let none: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team"}, "spec": {},
        }))
        .unwrap();
        assert_eq!(build_view(&[none], Timestamp::UNIX_EPOCH), IdleView::default());
    }
}
