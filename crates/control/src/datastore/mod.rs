//! The tenants' shared etcd: one user, one role and one key range for each tenant.
//!
//! A tenant's user is the common name of its client certificate and has no password; its role may read and write the
//! keys below its prefix and nothing else. A tenant's user may not compact: etcd does it itself (`--auto-compaction-*`), and
//! control does it earlier when much of the quota is used ([`History`]).

mod contents;
mod heads;
mod history;
mod keys;
mod leftovers;
mod range;
mod reading;
mod restore_record;
mod usage;

pub use contents::{ContentPage, StoredEntry, StoredRestore, TenantContents};
pub use heads::{HeadPage, IsEnough};
pub use history::History;
pub use leftovers::Leftovers;
pub use range::KeyRange;
pub use restore_record::{RestoreEnd, RestorePhase, RestoreRecord};
pub use usage::{DatabaseState, SizePage};

use async_trait::async_trait;
use berth_api::names::TenantId;
use berth_etcd::{
    Client, ConnectOptions, Status,
    api::{
        AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
        AuthRoleListRequest, AuthUserAddRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserListRequest,
        DeleteRangeRequest, Permission, UserAddOptions, permission,
    },
    prefix_end,
};
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use std::{collections::HashSet, path::PathBuf, time::Duration};
use tokio::sync::Mutex;

/// The name etcd requires for its first user and role.
const ROOT: &str = "root";
/// Time within which etcd must answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Life of control's own certificate; a new connection gets a new one.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Age at which the connection is replaced, well before its certificate expires.
const CONNECTION_AGE: Duration = Duration::from_secs(12 * 3600);

/// Endpoints of the datastore, and the CA of its clients.
#[derive(Clone, Debug)]
pub struct DatastoreConfig {
    /// Endpoints, for example https://127.0.0.1:2379.
    pub endpoints: Vec<String>,
    /// File with the CA certificate, PEM. It signs serving and client certificates.
    pub ca_cert: PathBuf,
    /// File with the CA's key, PEM.
    pub ca_key: PathBuf,
}

/// Why an operation of the datastore failed.
#[derive(Debug, thiserror::Error)]
pub enum DatastoreError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A certificate cannot be made.
    #[error(transparent)]
    Pki(#[from] berth_pki::Error),
    /// The endpoints or the certificates are invalid.
    #[error("the datastore's client cannot be set up: {0}")]
    Client(#[from] berth_etcd::InvalidOptions),
    /// etcd rejected a request, or did not answer.
    #[error("the datastore could not {what}: {source}")]
    Etcd {
        /// What was tried.
        what: &'static str,
        /// etcd's answer.
        source: Box<Status>,
    },
    /// A step of a restore was not carried out.
    #[error("another process goes on with the restore, or the tenant was deleted")]
    Superseded,
}

impl DatastoreError {
    /// Whether the revision that was asked for is gone: etcd has dropped its history.
    pub fn is_compacted(&self) -> bool {
        matches!(self, Self::Etcd { source, .. } if source.message().contains("has been compacted"))
    }
}

fn failed(what: &'static str) -> impl FnOnce(Status) -> DatastoreError {
    move |source| DatastoreError::Etcd {
        what,
        source: Box::new(source),
    }
}

/// What tenants need of their datastore.
#[async_trait]
pub trait TenantDatastore: Send + Sync {
    /// Endpoints of etcd.
    fn endpoints(&self) -> &[String];

    /// Certificate of the CA, PEM.
    fn ca_cert(&self) -> &str;

    /// Key of the CA, PEM. Secret.
    fn ca_key(&self) -> &str;

    /// Makes sure that the tenant's user, role and grant exist, and that authentication is on. Doing it again changes
    /// nothing.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn create_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError>;

    /// Deletes the tenant's user and role, and none of its keys: until it is created again, its certificate opens nothing. Doing it again changes
    /// nothing.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn delete_user(&self, tenant: &TenantId) -> Result<(), DatastoreError>;

    /// Removes everything of the tenant. Doing it again changes nothing.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn delete_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError>;

    /// Number of the tenant's keys.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn count_keys(&self, tenant: &TenantId) -> Result<u64, DatastoreError>;

    /// Sizes of some of the tenant's keys, from `start` or from the first of the range.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_sizes(
        &self,
        tenant: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
    ) -> Result<SizePage, DatastoreError>;

    /// The value of one of the tenant's keys; none if there is no such key. `path` is what follows the tenant's prefix.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_key(&self, tenant: &TenantId, path: &str) -> Result<Option<Vec<u8>>, DatastoreError>;

    /// The beginnings of the values of the tenant's keys in a folder that come after the key `after`, or the first ones. `folder` is what follows
    /// the tenant's prefix, up to a slash, and `after` what follows the folder. `is_enough` is asked of each beginning: the page ends soon after
    /// one for which it holds.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_heads(
        &self,
        tenant: &TenantId,
        folder: &str,
        after: Option<&[u8]>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<HeadPage, DatastoreError>;

    /// Deletes one of the tenant's keys. Doing it again changes nothing.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn delete_key(&self, tenant: &TenantId, path: &str) -> Result<(), DatastoreError>;
}

#[async_trait]
impl TenantDatastore for Datastore {
    fn endpoints(&self) -> &[String] {
        Self::endpoints(self)
    }

    fn ca_cert(&self) -> &str {
        Self::ca_cert(self)
    }

    fn ca_key(&self) -> &str {
        Self::ca_key(self)
    }

    async fn create_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        Self::create_tenant(self, tenant).await
    }

    async fn delete_user(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        Self::delete_user(self, tenant).await
    }

    async fn delete_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        Self::delete_tenant(self, tenant).await
    }

    async fn count_keys(&self, tenant: &TenantId) -> Result<u64, DatastoreError> {
        Self::count_keys(self, tenant).await
    }

    async fn read_sizes(
        &self,
        tenant: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
    ) -> Result<SizePage, DatastoreError> {
        Self::read_sizes(self, tenant, range, start).await
    }

    async fn read_key(&self, tenant: &TenantId, path: &str) -> Result<Option<Vec<u8>>, DatastoreError> {
        Self::read_key(self, tenant, path).await
    }

    async fn read_heads(
        &self,
        tenant: &TenantId,
        folder: &str,
        after: Option<&[u8]>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<HeadPage, DatastoreError> {
        Self::read_heads(self, tenant, folder, after, is_enough).await
    }

    async fn delete_key(&self, tenant: &TenantId, path: &str) -> Result<(), DatastoreError> {
        Self::delete_key(self, tenant, path).await
    }
}

/// The shared etcd.
pub struct Datastore {
    endpoints: Vec<String>,
    ca_cert: String,
    ca_key: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<(Client, tokio::time::Instant)>,
    /// Users of tenants that have a role and a grant, as far as this process knows.
    prepared: HashSet<String>,
}

impl Datastore {
    /// The datastore described by `config`. Reads the CA; connects later.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn open(config: &DatastoreConfig) -> Result<Self, DatastoreError> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| DatastoreError::File {
                path: path.display().to_string(),
                source,
            })
        };
        Ok(Self {
            endpoints: config.endpoints.clone(),
            ca_cert: read(&config.ca_cert)?,
            ca_key: read(&config.ca_key)?,
            state: Mutex::default(),
        })
    }

    /// Endpoints of etcd.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Certificate of the CA, PEM.
    pub fn ca_cert(&self) -> &str {
        &self.ca_cert
    }

    /// Key of the CA, PEM. Secret.
    pub fn ca_key(&self) -> &str {
        &self.ca_key
    }

    /// Forgets which tenants have a user, and enables authentication again: etcd has another database, which may lack both. Without
    /// authentication, each tenant could read the keys of all.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn reconnect(&self) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        *state = State::default();
        self.client(&mut state).await.map(drop)
    }

    /// Creates the tenant's user, role and grant unless they exist, and enables authentication. Sends no requests after it has
    /// succeeded once, until [`Datastore::reconnect`].
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn create_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        let name = tenant.etcd_user();
        if state.prepared.contains(&name) {
            return Ok(());
        }
        let client = self.client(&mut state).await?;
        add_role(&client, &name).await.map_err(failed("add a role"))?;
        let prefix = key_prefix(tenant);
        let range = Permission {
            perm_type: permission::Type::Readwrite.into(),
            range_end: prefix_end(&prefix),
            key: prefix.into(),
        };
        client
            .auth()
            .role_grant_permission(AuthRoleGrantPermissionRequest {
                name: name.clone(),
                perm: Some(range),
            })
            .await
            .map_err(failed("grant a key range"))?;
        add_user(&client, &name).await.map_err(failed("add a user"))?;
        grant_role(&client, &name, &name)
            .await
            .map_err(failed("grant a role"))?;
        state.prepared.insert(name);
        Ok(())
    }

    /// Deletes the tenant's user and role. None of its keys is deleted.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn delete_user(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        let name = tenant.etcd_user();
        state.prepared.remove(&name);
        let client = self.client(&mut state).await?;
        delete_identity(&client, &name).await
    }

    /// Deletes the tenant's user, role and all keys below its prefix. The tenant's API server must be stopped first, or it
    /// writes keys until its user is deleted.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn delete_tenant(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        state.prepared.remove(&tenant.etcd_user());
        let client = self.client(&mut state).await?;
        delete_identity(&client, &tenant.etcd_user()).await?;
        // Before its keys: a process that still restores it writes nothing from now on.
        contents::forget_restores(&client, tenant).await?;
        let prefix = key_prefix(tenant);
        client
            .keys()
            .delete_range(DeleteRangeRequest {
                range_end: prefix_end(&prefix),
                key: prefix.into(),
                ..DeleteRangeRequest::default()
            })
            .await
            .map_err(failed("delete a key range"))?;
        Ok(())
    }

    /// Descriptions of what etcd has of a tenant; empty if there is nothing.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn describe_tenant(&self, tenant: &TenantId) -> Result<Vec<String>, DatastoreError> {
        let mut state = self.state.lock().await;
        let client = self.client(&mut state).await?;
        let name = tenant.etcd_user();
        let mut remains = Vec::new();
        let users = client.auth().user_list(AuthUserListRequest {}).await;
        if users.map_err(failed("list users"))?.get_ref().users.contains(&name) {
            remains.push(format!("user {name}"));
        }
        let roles = client.auth().role_list(AuthRoleListRequest {}).await;
        if roles.map_err(failed("list roles"))?.get_ref().roles.contains(&name) {
            remains.push(format!("role {name}"));
        }
        // All take the lock.
        drop(state);
        if self.read_restore(tenant, None).await?.is_some() {
            remains.push("the record of a restore".into());
        }
        if self.read_restore_end(tenant).await?.is_some() {
            remains.push("the end of a restore".into());
        }
        let count = self.count_keys(tenant).await?;
        if count > 0 {
            remains.push(format!("{count} keys below {}", key_prefix(tenant)));
        }
        Ok(remains)
    }

    async fn client(&self, state: &mut State) -> Result<Client, DatastoreError> {
        if let Some((client, since)) = &state.connection
            && since.elapsed() < CONNECTION_AGE
        {
            return Ok(client.clone());
        }
        let authority = CertificateAuthority::from_pem(&self.ca_cert, &self.ca_key)?;
        let mut request = LeafRequest::new(Usage::Client, CERTIFICATE_VALIDITY);
        request.common_name = ROOT.into();
        let own = authority.issue(&request)?;
        let client = Client::new(&ConnectOptions {
            endpoints: &self.endpoints,
            ca_certificate: &self.ca_cert,
            certificate: &own.cert_pem,
            key: &own.key_pem,
            timeout: TIMEOUT,
        })?;
        enable_authentication(&client).await?;
        state.connection = Some((client.clone(), tokio::time::Instant::now()));
        Ok(client)
    }
}

/// The prefix of the tenant's keys. It ends with a slash, so that no tenant's prefix begins with another's.
fn key_prefix(tenant: &TenantId) -> String {
    format!("{}/", tenant.etcd_prefix())
}

/// Creates the root user and enables authentication unless it is enabled.
async fn enable_authentication(client: &Client) -> Result<(), DatastoreError> {
    add_user(client, ROOT).await.map_err(failed("add the root user"))?;
    add_role(client, ROOT).await.map_err(failed("add the root role"))?;
    grant_role(client, ROOT, ROOT)
        .await
        .map_err(failed("grant the root role"))?;
    client
        .auth()
        .auth_enable(AuthEnableRequest {})
        .await
        .map_err(failed("turn authentication on"))?;
    Ok(())
}

/// Creates a user without a password unless it exists.
async fn add_user(client: &Client, name: &str) -> Result<(), Status> {
    let request = AuthUserAddRequest {
        name: name.to_owned(),
        options: Some(UserAddOptions { no_password: true }),
        ..AuthUserAddRequest::default()
    };
    ignore_existing(client.auth().user_add(request).await)
}

/// Creates a role unless it exists.
async fn add_role(client: &Client, name: &str) -> Result<(), Status> {
    let request = AuthRoleAddRequest { name: name.to_owned() };
    ignore_existing(client.auth().role_add(request).await)
}

/// Deletes a user and the role of the same name, if they exist.
async fn delete_identity(client: &Client, name: &str) -> Result<(), DatastoreError> {
    let user = AuthUserDeleteRequest { name: name.to_owned() };
    ignore_missing(client.auth().user_delete(user).await).map_err(failed("delete a user"))?;
    let role = AuthRoleDeleteRequest { role: name.to_owned() };
    ignore_missing(client.auth().role_delete(role).await).map_err(failed("delete a role"))
}

async fn grant_role(client: &Client, user: &str, role: &str) -> Result<(), Status> {
    let request = AuthUserGrantRoleRequest {
        user: user.to_owned(),
        role: role.to_owned(),
    };
    client.auth().user_grant_role(request).await.map(drop)
}

/// Treats "exists already" as success.
fn ignore_existing<T>(result: Result<T, Status>) -> Result<(), Status> {
    ignore_message(result, "already exists")
}

/// Treats "does not exist" as success.
fn ignore_missing<T>(result: Result<T, Status>) -> Result<(), Status> {
    ignore_message(result, "not found")
}

/// etcd distinguishes these cases only by text: all are `FailedPrecondition`.
fn ignore_message<T>(result: Result<T, Status>, text: &str) -> Result<(), Status> {
    match result {
        Err(status) if status.message().contains(text) => Ok(()),
        other => other.map(drop),
    }
}
