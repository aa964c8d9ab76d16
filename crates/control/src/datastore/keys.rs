//! Single keys of a tenant.

use super::{Datastore, DatastoreError, failed, key_prefix};
use berth_api::names::TenantId;
use berth_etcd::api::{DeleteRangeRequest, RangeRequest};

impl Datastore {
    /// The value of one of a tenant's keys; none if there is no such key. `path` is what follows the tenant's prefix.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_key(&self, tenant: &TenantId, path: &str) -> Result<Option<Vec<u8>>, DatastoreError> {
        let client = self.connected_client().await?;
        let request = RangeRequest {
            key: key(tenant, path),
            ..RangeRequest::default()
        };
        let answer = client.keys().range(request).await.map_err(failed("read a key"))?;
        Ok(answer.into_inner().kvs.pop().map(|pair| pair.value))
    }

    /// Deletes one of a tenant's keys. That it is gone already is no error.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn delete_key(&self, tenant: &TenantId, path: &str) -> Result<(), DatastoreError> {
        let client = self.connected_client().await?;
        let request = DeleteRangeRequest {
            key: key(tenant, path),
            ..DeleteRangeRequest::default()
        };
        let deleted = client.keys().delete_range(request).await;
        deleted.map(drop).map_err(failed("delete a key"))
    }
}

fn key(tenant: &TenantId, path: &str) -> Vec<u8> {
    format!("{}{path}", key_prefix(tenant)).into_bytes()
}
