//! The report of a simulation as text.

use berth_simulate::{Report, Scene, TenantReport, Waiting};

use crate::output::format_table;

pub(super) fn describe(report: &Report) -> String {
    let mut lines = describe_input(report);
    lines.extend([String::new(), format_scenes(report), String::new()]);
    lines.extend([format_tenants(&report.tenants), String::new()]);
    let served = [
        ("stranded demand served", report.stranded_demand_served),
        (
            "stranded demand served, of what whole nodes could serve",
            report.stranded_nodes_served,
        ),
    ];
    for (what, share) in served {
        lines.push(match share {
            Some(share) => format!("{what}: {}", format_percent(share)),
            None => format!("{what}: nothing was stranded"),
        });
    }
    lines.join("\n")
}

/// What was simulated, and what was left out.
fn describe_input(report: &Report) -> Vec<String> {
    let Report {
        trace, fleet, tenants, ..
    } = report;
    let mut lines = vec![format!(
        "{} jobs of {} tenants on {} nodes with {} GPUs each; load {} over {} days, arrivals × {}",
        trace.jobs,
        tenants.len(),
        fleet.nodes,
        fleet.gpus_per_node,
        format_percent(fleet.offered_load),
        format_rounded(trace.window_hours / 24.0, 1),
        trace.time_scale,
    )];
    let left_out = [
        (trace.left_out.without_gpus, "request no GPU"),
        (trace.left_out.never_ran, "never ran"),
    ];
    for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        lines.push(format!("{count} rows are left out because they {why}"));
    }
    lines
}

/// Both replays, side by side.
fn format_scenes(report: &Report) -> String {
    let scene = |name: &str, of: fn(&Scene) -> String| [name.to_owned(), of(&report.fixed), of(&report.dynamic)];
    let rows = [
        scene("GPU use", |s| format_percent(s.gpu_use)),
        scene("idle: beside jobs (fragmentation)", |s| {
            format_percent(s.idle.beside_jobs)
        }),
        scene("idle: a tenant's empty nodes", |s| format_percent(s.idle.idle_nodes)),
        scene("idle: free nodes", |s| format_percent(s.idle.free)),
        scene("idle: being recycled", |s| format_percent(s.idle.recycling)),
        scene("waiting demand, GPU-hours", |s| format_rounded(s.waiting_gpu_hours, 0)),
        scene("stranded demand, GPU-hours", |s| {
            format_rounded(s.stranded_gpu_hours, 0)
        }),
        scene("  beside whole idle nodes", |s| {
            format_rounded(s.stranded_node_gpu_hours, 0)
        }),
        scene("wait: mean", |s| format_mean(&s.wait)),
        scene("wait: p50", |s| format_duration(s.wait.p50)),
        scene("wait: p95", |s| format_duration(s.wait.p95)),
        scene("fairness (Jain)", |s| format_rounded(s.fairness, 3)),
        scene("nodes recycled", |s| s.recyclings.to_string()),
        scene("scrubbing, node-hours", |s| format_rounded(s.scrub_node_hours, 0)),
        scene("evictions", |s| s.evictions.to_string()),
        scene("repeated work, GPU-hours", |s| format_rounded(s.repeated_gpu_hours, 0)),
    ];
    align(["", "STATIC", "DYNAMIC"], &rows)
}

fn format_tenants(tenants: &[TenantReport]) -> String {
    let row = |tenant: &TenantReport| {
        let (fixed, dynamic) = (&tenant.fixed.wait, &tenant.dynamic.wait);
        [
            tenant.name.clone(),
            tenant.jobs.to_string(),
            format_rounded(tenant.gpu_hours, 0),
            tenant.partition_nodes.to_string(),
            format_mean(fixed),
            format_duration(fixed.p50),
            format_duration(fixed.p95),
            format_mean(dynamic),
            format_duration(dynamic.p50),
            format_duration(dynamic.p95),
        ]
    };
    let heading = [
        "TENANT",
        "JOBS",
        "GPU-HOURS",
        "NODES",
        "STATIC: MEAN",
        "P50",
        "P95",
        "DYNAMIC: MEAN",
        "P50",
        "P95",
    ];
    align(heading, &tenants.iter().map(row).collect::<Vec<_>>())
}

/// A table with all columns but the first aligned at the right.
fn align<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let pad = |at: usize, cell: &str| match at {
        0 => cell.to_owned(),
        _ => format!("{cell:>width$}", width = widths[at]),
    };
    let padded = |row: &[String; N]| std::array::from_fn(|at| pad(at, &row[at]));
    let heading = std::array::from_fn::<String, N, _>(|at| pad(at, heading[at]));
    let rows: Vec<[String; N]> = rows.iter().map(padded).collect();
    format_table(heading.each_ref().map(String::as_str), &rows)
}

fn format_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn format_rounded(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

fn format_mean(wait: &Waiting) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "waits are far below 2^52 seconds")]
    format_duration(wait.mean.round() as i64)
}

/// The two largest units: `3d4h`, `5m10s`.
fn format_duration(seconds: i64) -> String {
    let parts = [
        (seconds / 86400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = parts.iter().skip(first).take(2).filter(|(count, _)| *count > 0);
    let shown: Vec<String> = shown.map(|(count, unit)| format!("{count}{unit}")).collect();
    if shown.is_empty() { "0s".into() } else { shown.concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_their_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (3600, "1h"),
            (3661, "1h1m"),
            (90061, "1d1h"),
            (310, "5m10s"),
        ] {
            assert_eq!(format_duration(seconds), text);
        }
    }

    #[test]
    fn numbers_are_aligned_at_the_right() {
        let rows = [["a".into(), "1".into()], ["bc".into(), "100".into()]];
        assert_eq!(align(["X", "N"], &rows), "X     N\na     1\nbc  100");
    }
}
