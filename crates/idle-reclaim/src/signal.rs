//! What is measured of a GPU.

use berth_api::IdleSignal;

/// One measured signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Activity of any engine, from 0 to 1.
    Engine,
    /// Activity of the tensor cores, from 0 to 1.
    Tensor,
    /// Use of the memory interface, from 0 to 1.
    Memory,
    /// Bytes a second sent over PCIe.
    PcieSent,
    /// Bytes a second received over PCIe.
    PcieReceived,
    /// Bytes a second sent over NVLink.
    NvlinkSent,
    /// Bytes a second received over NVLink.
    NvlinkReceived,
    /// Watts.
    Power,
}

/// Signals of which a class always requires that they show no activity.
pub const ALWAYS: [Signal; 3] = [Signal::Engine, Signal::Tensor, Signal::Power];

impl Signal {
    /// Number of signals.
    pub const COUNT: usize = 8;

    /// All signals.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Engine,
        Self::Tensor,
        Self::Memory,
        Self::PcieSent,
        Self::PcieReceived,
        Self::NvlinkSent,
        Self::NvlinkReceived,
        Self::Power,
    ];

    /// The metric of NVIDIA's DCGM exporter.
    pub const fn metric(self) -> &'static str {
        match self {
            Self::Engine => "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            Self::Tensor => "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            Self::Memory => "DCGM_FI_PROF_DRAM_ACTIVE",
            Self::PcieSent => "DCGM_FI_PROF_PCIE_TX_BYTES",
            Self::PcieReceived => "DCGM_FI_PROF_PCIE_RX_BYTES",
            Self::NvlinkSent => "DCGM_FI_PROF_NVLINK_TX_BYTES",
            Self::NvlinkReceived => "DCGM_FI_PROF_NVLINK_RX_BYTES",
            Self::Power => "DCGM_FI_DEV_POWER_USAGE",
        }
    }

    /// Its place in arrays of all signals.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it is measured for each MIG instance, and not only for the whole GPU: power and traffic of a GPU say nothing
    /// about one of its instances.
    pub const fn is_of_instance(self) -> bool {
        matches!(self, Self::Engine | Self::Tensor | Self::Memory)
    }
}

/// The signals of a setting of the class.
pub const fn measured(additional: IdleSignal) -> &'static [Signal] {
    match additional {
        IdleSignal::MemoryActivity => &[Signal::Memory],
        IdleSignal::PcieTraffic => &[Signal::PcieSent, Signal::PcieReceived],
        IdleSignal::NvlinkTraffic => &[Signal::NvlinkSent, Signal::NvlinkReceived],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_its_own_place_and_metric() {
        let places: Vec<usize> = Signal::ALL.iter().map(|signal| signal.index()).collect();
        assert_eq!(places, (0..Signal::COUNT).collect::<Vec<_>>());
        let mut metrics: Vec<&str> = Signal::ALL.iter().map(|signal| signal.metric()).collect();
        metrics.sort_unstable();
        metrics.dedup();
        assert_eq!(metrics.len(), Signal::COUNT);
    }

    #[test]
    fn power_is_not_measured_of_instances() {
        assert!(!Signal::Power.is_of_instance());
        assert!(ALWAYS.iter().any(|signal| signal.is_of_instance()));
    }
}
