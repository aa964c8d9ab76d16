//! Alibaba's pod lists (`openb_pod_list_*.csv`). They name no tenants, so tenants are made: pods of one shape (class of service,
//! CPU, memory, GPUs) are taken to be of one team, so that pods that were created together stay together.

use std::collections::HashMap;

use berth_planner::Seconds;

use super::{Cells, Form, Parsed, Reading, Row};

const SHAPE: [&str; 5] = ["qos", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
const TIMES: [&str; 3] = ["creation_time", "deletion_time", "scheduled_time"];

/// Rows of pods.
pub(super) struct Pods {
    tenants: u64,
    seed: u64,
}

/// The form, if the columns match it.
pub(super) fn form(columns: &HashMap<&str, usize>, reading: Reading) -> Option<Pods> {
    let complete = SHAPE.iter().chain(&TIMES).all(|name| columns.contains_key(name));
    complete.then_some(Pods {
        tenants: u64::from(reading.tenants.max(1)),
        seed: reading.seed,
    })
}

impl Form for Pods {
    fn parse(&self, cells: &Cells<'_>) -> Result<Parsed, String> {
        // A part of a GPU counts as a whole one: GPUs are not shared.
        let gpus: u32 = cells.number("num_gpu")?;
        let arrival = cells.seconds("creation_time")?;
        if gpus == 0 {
            return Ok(Parsed::WithoutGpus);
        }
        if cells.text("scheduled_time").is_empty() {
            return Ok(Parsed::NeverRan);
        }
        let (start, end): (Seconds, Seconds) = (cells.seconds("scheduled_time")?, cells.seconds("deletion_time")?);
        if end < start {
            return Err(format!("deleted at {end}, before it was scheduled at {start}"));
        }
        if end == start {
            return Ok(Parsed::NeverRan);
        }
        let tenant = self.tenant(SHAPE.iter().map(|column| cells.text(column)));
        Ok(Parsed::Job(Row {
            tenant: format!("tenant-{:02}", tenant + 1),
            arrival,
            duration: end - start,
            gpus,
        }))
    }
}

impl Pods {
    /// FNV-1a: the same in every version of Berth, unlike the standard library's.
    fn tenant<'a>(&self, shape: impl Iterator<Item = &'a str>) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ self.seed;
        for byte in shape.flat_map(|cell| cell.bytes().chain([0])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        // The lower bits alone mix badly.
        (hash ^ (hash >> 32)) % self.tenants
    }
}
