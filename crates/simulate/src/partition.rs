//! Static partitions: the nodes that each tenant has permanently.

use crate::error::Error;
use crate::load::Window;
use crate::trace::Job;

/// The number of nodes of each tenant. Their sum is the fleet.
///
/// Every tenant gets nodes in proportion to the GPU time that it requests within the window, and at least as many as its
/// largest job needs: otherwise that job could never run.
///
/// # Errors
/// The fleet has fewer nodes than the largest jobs of all tenants need.
pub fn divide_nodes(jobs: &[Job], tenants: &[String], nodes: u32, gpus_per_node: u32) -> Result<Vec<u32>, Error> {
    let window = Window::of(jobs);
    let mut least = vec![1_u32; tenants.len()];
    let mut work = vec![0_u64; tenants.len()];
    for job in jobs {
        least[job.tenant] = least[job.tenant].max(job.gpus.div_ceil(gpus_per_node));
        work[job.tenant] += window.work_of(job);
    }
    let needed: u32 = least.iter().sum();
    if needed > nodes {
        return Err(Error::TooSmall {
            nodes,
            needed,
            tenants: tenants.len(),
        });
    }
    Ok(apportion(&work, &least, nodes))
}

/// The largest remainder method, with a minimum for each tenant.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares of a number of nodes"
)]
fn apportion(work: &[u64], least: &[u32], nodes: u32) -> Vec<u32> {
    let mut result = least.to_vec();
    // Tenants whose share is below their minimum get the minimum; the others divide the rest, which can put more of them below.
    let mut open: Vec<usize> = (0..work.len()).collect();
    let quotas = loop {
        let rest = nodes
            - (0..work.len())
                .filter(|at| !open.contains(at))
                .map(|at| least[at])
                .sum::<u32>();
        let total: u64 = open.iter().map(|at| work[*at]).sum();
        let quota = |at: usize| f64::from(rest) * work[at] as f64 / (total as f64).max(1.0);
        let (below, above): (Vec<usize>, Vec<usize>) = open.iter().partition(|at| quota(**at) < f64::from(least[**at]));
        if below.is_empty() || above.is_empty() {
            break open.iter().map(|at| (*at, quota(*at))).collect::<Vec<_>>();
        }
        open = above;
    };
    for (at, quota) in &quotas {
        result[*at] = (quota.floor() as u32).max(least[*at]);
    }
    let mut by_remainder = quotas;
    by_remainder.sort_by(|(a, x), (b, y)| y.fract().total_cmp(&x.fract()).then(a.cmp(b)));
    let missing = nodes.saturating_sub(result.iter().sum());
    let order = by_remainder.iter().map(|(at, _)| *at).cycle();
    for at in order.take(missing as usize) {
        result[at] += 1;
    }
    result
}

/// The GPU time that a tenant got, and that it requested, in GPU-seconds.
pub type Served = (u64, u64);

/// Jain's index over the served shares of all tenants that requested GPUs: 1 if all got the same part of their requests, 1/n if
/// one got everything.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn jain_index(served: &[Served]) -> f64 {
    let shares: Vec<f64> = served
        .iter()
        .filter(|(_, requested)| *requested > 0)
        .map(|(got, requested)| *got as f64 / *requested as f64)
        .collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_in_proportion_to_work_and_none_is_left() {
        assert_eq!(apportion(&[50, 30, 20], &[1, 1, 1], 10), [5, 3, 2]);
        // 3.33 each: the first gets the remaining node.
        assert_eq!(apportion(&[1, 1, 1], &[1, 1, 1], 10), [4, 3, 3]);
        assert_eq!(apportion(&[0, 0], &[1, 1], 5), [3, 2]);
    }

    #[test]
    fn the_largest_job_of_each_tenant_fits() {
        // By work alone 0, 9.9 and 0.1: the first and the third get their minimum, and 5 remain.
        assert_eq!(apportion(&[0, 99, 1], &[1, 1, 4], 10), [1, 5, 4]);
    }

    #[test]
    fn a_fleet_below_the_largest_jobs_is_refused() {
        let jobs = [Job {
            tenant: 0,
            arrival: 0,
            duration: 1,
            gpus: 17,
        }];
        let message = divide_nodes(&jobs, &["a".into(), "b".into()], 3, 8)
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "3 nodes are too few: partitions that hold the largest job of each of 2 tenants need 4"
        );
    }

    #[test]
    fn fairness_is_jains_index() {
        assert!((jain_index(&[(5, 10), (10, 20), (0, 0)]) - 1.0).abs() < 1e-9);
        assert!((jain_index(&[(10, 10), (0, 10)]) - 0.5).abs() < 1e-9);
        // Shares 1 and 0.5: 1.5² / (2 × 1.25).
        assert!((jain_index(&[(10, 10), (5, 10)]) - 0.9).abs() < 1e-9);
    }
}
