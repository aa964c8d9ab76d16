//! The tenants' shared etcd: one user, one role and one key range for each tenant.
//!
//! A tenant's user is the common name of its client certificate and has no password; its role may read and write the
//! keys below its prefix and nothing else. Compaction is left to etcd (`--auto-compaction-*`), because a tenant's user
//! may not compact.

use berth_api::names::TenantId;
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use etcd_client::{
    Certificate, Client, ConnectOptions, DeleteOptions, Error as EtcdError, GetOptions, Identity, Permission,
    TlsOptions, UserAddOptions,
};
use std::{collections::HashSet, path::PathBuf, time::Duration};
use tokio::sync::Mutex;

/// The name etcd requires for its first user and role.
const ROOT: &str = "root";
/// Time within which etcd must answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Life of control's own certificate; a new connection gets a new one.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Age at which the connection is made anew, well before its certificate ends.
const CONNECTION_AGE: Duration = Duration::from_secs(12 * 3600);

/// Where the datastore is and the CA that its clients are signed by.
#[derive(Clone, Debug)]
pub struct DatastoreConfig {
    /// Endpoints, for example https://127.0.0.1:2379.
    pub endpoints: Vec<String>,
    /// File with the CA certificate, PEM. It signs serving and client certificates.
    pub ca_cert: PathBuf,
    /// File with the CA's key, PEM.
    pub ca_key: PathBuf,
}

/// Why the datastore did not do what was asked.
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
    /// etcd refused, or did not answer.
    #[error("the datastore could not {what}: {source}")]
    Etcd {
        /// What was asked for.
        what: &'static str,
        /// etcd's answer.
        source: Box<EtcdError>,
    },
}

fn failed(what: &'static str) -> impl FnOnce(EtcdError) -> DatastoreError {
    move |source| DatastoreError::Etcd {
        what,
        source: Box::new(source),
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
    /// Tenants whose user, role and grant this process has made sure of.
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

    /// Makes sure that the tenant's user, role and grant exist, and that authentication is on. Doing it again changes
    /// nothing, and asks etcd nothing once it is done.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn prepare(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        if state.prepared.contains(tenant.hash()) {
            return Ok(());
        }
        let mut client = self.client(&mut state).await?;
        let name = tenant.etcd_user();
        existing(client.role_add(name.as_str()).await).map_err(failed("add a role"))?;
        let range = Permission::read_write(format!("{}/", tenant.etcd_prefix())).with_prefix();
        client
            .role_grant_permission(name.as_str(), range)
            .await
            .map_err(failed("grant a key range"))?;
        existing(
            client
                .user_add(name.as_str(), "", Some(UserAddOptions::new().with_no_pwd()))
                .await,
        )
        .map_err(failed("add a user"))?;
        client
            .user_grant_role(name.as_str(), name.as_str())
            .await
            .map_err(failed("grant a role"))?;
        state.prepared.insert(tenant.hash().to_owned());
        Ok(())
    }

    /// Removes the tenant's user, role and every key below its prefix. Doing it again changes nothing. The tenant's API
    /// server must be stopped first, or it writes anew until its user is gone.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn remove(&self, tenant: &TenantId) -> Result<(), DatastoreError> {
        let mut state = self.state.lock().await;
        state.prepared.remove(tenant.hash());
        let mut client = self.client(&mut state).await?;
        let name = tenant.etcd_user();
        missing(client.user_delete(name.as_str()).await).map_err(failed("delete a user"))?;
        missing(client.role_delete(name.as_str()).await).map_err(failed("delete a role"))?;
        let prefix = format!("{}/", tenant.etcd_prefix());
        client
            .delete(prefix, Some(DeleteOptions::new().with_prefix()))
            .await
            .map_err(failed("delete a key range"))?;
        Ok(())
    }

    /// What etcd still holds of a tenant, in words; empty when nothing is left.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn remains(&self, tenant: &TenantId) -> Result<Vec<String>, DatastoreError> {
        let mut state = self.state.lock().await;
        let mut client = self.client(&mut state).await?;
        let name = tenant.etcd_user();
        let mut remains = Vec::new();
        let users = client.user_list().await.map_err(failed("list users"))?;
        if users.users().contains(&name) {
            remains.push(format!("user {name}"));
        }
        let roles = client.role_list().await.map_err(failed("list roles"))?;
        if roles.roles().contains(&name) {
            remains.push(format!("role {name}"));
        }
        let prefix = format!("{}/", tenant.etcd_prefix());
        let keys = client
            .get(prefix.as_str(), Some(GetOptions::new().with_prefix().with_count_only()))
            .await
            .map_err(failed("count keys"))?;
        if keys.count() > 0 {
            remains.push(format!("{} keys below {prefix}", keys.count()));
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
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(&self.ca_cert))
            .identity(Identity::from_pem(&own.cert_pem, &own.key_pem));
        let options = ConnectOptions::new()
            .with_tls(tls)
            .with_connect_timeout(TIMEOUT)
            .with_timeout(TIMEOUT)
            .with_keep_alive(Duration::from_secs(30), TIMEOUT);
        let mut client = Client::connect(&self.endpoints, Some(options))
            .await
            .map_err(failed("be reached"))?;
        enable_authentication(&mut client).await?;
        state.connection = Some((client.clone(), tokio::time::Instant::now()));
        Ok(client)
    }
}

/// Makes the root user and turns authentication on. With it on already, nothing changes.
async fn enable_authentication(client: &mut Client) -> Result<(), DatastoreError> {
    existing(
        client
            .user_add(ROOT, "", Some(UserAddOptions::new().with_no_pwd()))
            .await,
    )
    .map_err(failed("add the root user"))?;
    existing(client.role_add(ROOT).await).map_err(failed("add the root role"))?;
    client
        .user_grant_role(ROOT, ROOT)
        .await
        .map_err(failed("grant the root role"))?;
    client.auth_enable().await.map_err(failed("turn authentication on"))?;
    Ok(())
}

/// Takes "it exists already" for success.
fn existing<T>(result: Result<T, EtcdError>) -> Result<(), EtcdError> {
    tolerate(result, "already exists")
}

/// Takes "there is none" for success.
fn missing<T>(result: Result<T, EtcdError>) -> Result<(), EtcdError> {
    tolerate(result, "not found")
}

/// etcd tells these cases apart by text only: every one of them is `FailedPrecondition`.
fn tolerate<T>(result: Result<T, EtcdError>, text: &str) -> Result<(), EtcdError> {
    match result {
        Err(EtcdError::GRpcStatus(status)) if status.message().contains(text) => Ok(()),
        other => other.map(drop),
    }
}
