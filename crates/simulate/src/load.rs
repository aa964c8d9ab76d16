//! How much of a fleet a trace keeps busy, and how its arrivals are moved to reach the requested load.

use berth_planner::Seconds;

use crate::trace::Job;

/// The time in which everything is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it begins.
    pub from: Seconds,
    /// When it ends.
    pub until: Seconds,
}

impl Window {
    /// The window of a trace: without the arrivals of the first and the last hundredth of the jobs, because a few jobs long before
    /// or after all others would make it mostly empty. At least one second.
    pub fn of(jobs: &[Job]) -> Self {
        let margin = jobs.len() / 100;
        let arrival = |at: usize| jobs.get(at).map_or(0, |job| job.arrival);
        let from = arrival(margin);
        let until = arrival(jobs.len().saturating_sub(margin + 1)).max(from + 1);
        Self { from, until }
    }

    /// Its length.
    pub fn length(self) -> Seconds {
        self.until - self.from
    }

    /// How much of a time lies within the window.
    pub fn overlap(self, from: Seconds, until: Seconds) -> Seconds {
        (until.min(self.until) - from.max(self.from)).max(0)
    }

    /// GPU-seconds of a job within the window, if it starts when it arrives.
    pub fn work_of(self, job: &Job) -> u64 {
        u64::from(job.gpus) * self.overlap(job.arrival, job.arrival + job.duration).unsigned_abs()
    }
}

/// The average share of the fleet's GPUs that is busy within the window if every job starts when it arrives: more than one if
/// the jobs need more GPUs than the fleet has.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn offered_load(jobs: &[Job], gpus: u64) -> f64 {
    let window = Window::of(jobs);
    let work: u64 = jobs.iter().map(|job| window.work_of(job)).sum();
    work as f64 / (gpus as f64 * window.length() as f64)
}

/// Moves the arrivals, but does not change durations, so that the trace has this load. Returns the factor.
pub fn scale_arrivals(jobs: &mut [Job], gpus: u64, load: f64) -> f64 {
    let scaled = |factor: f64| -> Vec<Job> {
        let mut jobs = jobs.to_vec();
        stretch(&mut jobs, factor);
        jobs
    };
    // The more slowly jobs arrive, the fewer run at the same time. Durations are bounded, so a large factor reaches any low load;
    // the highest load is that of all jobs at once.
    let (mut dense, mut sparse) = (1e-6_f64, 1e6_f64);
    for _ in 0..60 {
        let middle = (dense * sparse).sqrt();
        if offered_load(&scaled(middle), gpus) > load {
            dense = middle;
        } else {
            sparse = middle;
        }
    }
    // A few digits are precise enough, and easier to repeat.
    let factor = round(sparse, 6);
    stretch(jobs, factor);
    factor
}

fn stretch(jobs: &mut [Job], factor: f64) {
    let first = jobs.first().map_or(0, |job| job.arrival);
    for job in jobs {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "seconds within a trace are far below 2^52"
        )]
        let since = ((job.arrival - first) as f64 * factor).round() as Seconds;
        job.arrival = since;
    }
}

/// Rounds to this many significant digits.
fn round(value: f64, digits: i32) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "an exponent is small")]
    let shift = 10_f64.powi(digits - 1 - value.abs().log10().floor() as i32);
    (value * shift).round() / shift
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrival: Seconds, duration: Seconds, gpus: u32) -> Job {
        Job {
            tenant: 0,
            arrival,
            duration,
            gpus,
        }
    }

    #[test]
    fn load_is_the_busy_share_if_no_job_waits() {
        // The window is 0..100: 2 GPUs for 50 s, and 4 GPUs for the last 0 s.
        let jobs = [job(0, 50, 2), job(100, 1000, 4)];
        assert_eq!(Window::of(&jobs), Window { from: 0, until: 100 });
        assert!((offered_load(&jobs, 10) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn the_window_leaves_out_a_hundredth_of_the_jobs_at_either_end() {
        let mut jobs: Vec<Job> = (0..200).map(|at| job(1000 + at, 1, 1)).collect();
        jobs[0].arrival = 0;
        jobs[1].arrival = 1;
        assert_eq!(
            Window::of(&jobs),
            Window {
                from: 1002,
                until: 1197
            }
        );
    }

    #[test]
    fn arrivals_are_moved_until_the_load_is_right() {
        let mut jobs: Vec<Job> = (0..1000).map(|at| job(5000 + at * 10, 40, 1)).collect();
        let factor = scale_arrivals(&mut jobs, 8, 0.5);
        // One GPU for 40 s every 10 s is half of 8 GPUs without moving arrivals.
        assert!((factor - 1.0).abs() < 0.02, "{factor}");
        assert!((offered_load(&jobs, 8) - 0.5).abs() < 0.01);
        assert_eq!(jobs[0].arrival, 0);
        let denser = scale_arrivals(&mut jobs, 8, 0.9);
        assert!((offered_load(&jobs, 8) - 0.9).abs() < 0.01, "{denser}");
    }
}
