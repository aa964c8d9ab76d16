//! A device plugin that stands in for NVIDIA's on real kubelets of machines without GPUs.
//!
//! It registers with the kubelet as NVIDIA's does, lists devices under ids of the same form, and gives containers the
//! same environment variable (`NVIDIA_VISIBLE_DEVICES=GPU-…,GPU-…`); but there is no hardware behind them. So scheduling,
//! quotas, allocation by the kubelet and what happens when a device fails can be seen without hardware. It uses the
//! variable and not CDI, because CDI would need devices that exist.
//!
//! Only the kubelet knows which container has which device: a plugin that is killed and started again lists the same
//! devices under the same ids, and needs nothing else.

mod api;
mod devices;
mod options;
mod plugin;
mod session;

pub use api::v1beta1;
pub use devices::{DeviceList, UnknownDevice, VISIBLE_DEVICES};
pub use options::Options;
pub use session::{KUBELET_SOCKET, run};
