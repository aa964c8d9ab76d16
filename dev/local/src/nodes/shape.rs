//! The kinds of machines that local clusters have.

/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeShape {
    /// 8 × NVIDIA H100 80GB HBM3, NVLink, MIG-capable.
    H100,
    /// 4 × NVIDIA L40S.
    L40s,
    /// No GPU.
    Cpu,
}

/// The properties of a GPU product.
pub(super) struct Gpu {
    pub(super) product: &'static str,
    pub(super) count: u32,
    pub(super) memory_mib: u32,
    pub(super) family: &'static str,
    pub(super) compute: (&'static str, &'static str),
    pub(super) mig_capable: bool,
    pub(super) nvlink: bool,
}

impl NodeShape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::H100, Self::L40s, Self::Cpu];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::H100 => "h100",
            Self::L40s => "l40s",
            Self::Cpu => "cpu",
        }
    }

    /// The name of the `number`-th node (from 1) of this shape.
    pub fn node_name(self, number: u16) -> String {
        match self {
            Self::Cpu => format!("cpu-{number:02}"),
            Self::H100 | Self::L40s => format!("gpu-{}-{number:02}", self.name()),
        }
    }

    pub(super) fn gpu(self) -> Option<Gpu> {
        match self {
            Self::H100 => Some(Gpu {
                product: "NVIDIA-H100-80GB-HBM3",
                count: 8,
                memory_mib: 81_559,
                family: "hopper",
                compute: ("9", "0"),
                mig_capable: true,
                nvlink: true,
            }),
            Self::L40s => Some(Gpu {
                product: "NVIDIA-L40S",
                count: 4,
                memory_mib: 46_068,
                family: "ada-lovelace",
                compute: ("8", "9"),
                mig_capable: false,
                nvlink: false,
            }),
            Self::Cpu => None,
        }
    }

    /// Machine type, CPUs, memory in GiB, local disk in GiB.
    pub(super) fn machine(self) -> (&'static str, u32, u32, u32) {
        match self {
            Self::H100 => ("hgx-h100-8", 224, 2048, 28_000),
            Self::L40s => ("pcie-l40s-4", 128, 1024, 7_000),
            Self::Cpu => ("general-64", 64, 256, 1_800),
        }
    }

    /// Place of this shape in the address plan.
    pub(super) fn block(self) -> u16 {
        match self {
            Self::H100 => 0,
            Self::L40s => 1,
            Self::Cpu => 2,
        }
    }
}
