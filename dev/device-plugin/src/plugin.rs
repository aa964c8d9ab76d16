//! The service that the kubelet calls.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::DeviceList;
use crate::v1beta1::device_plugin_server::DevicePlugin;
use crate::v1beta1::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// The service, for as long as one kubelet is connected.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) devices: watch::Receiver<DeviceList>,
    /// Ends the kubelet's watches: the server would otherwise wait for them when it shuts down.
    pub(crate) end: CancellationToken,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut devices = self.devices.clone();
        devices.mark_changed();
        let lists = stream::unfold(devices, |mut devices| async {
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().as_listed();
            Some((Ok(ListAndWatchResponse { devices: list }), devices))
        });
        let end = self.end.clone().cancelled_owned();
        Ok(Response::new(Box::pin(lists.take_until(end))))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let devices = self.devices.borrow().clone();
        let responses = request
            .into_inner()
            .container_requests
            .iter()
            .map(|container| {
                tracing::info!(devices = ?container.devices_ids, "allocated");
                devices.allocate(&container.devices_ids)
            })
            .collect::<Result<_, _>>()
            .map_err(|unknown| Status::invalid_argument(unknown.to_string()))?;
        Ok(Response::new(AllocateResponse {
            container_responses: responses,
        }))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented(
            "all devices are equal: the plugin does not offer this call",
        ))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented(
            "the plugin needs no pre-start call and does not offer it",
        ))
    }
}
