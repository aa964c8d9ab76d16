//! What control remembers of the issuers of a tenant's API server.

use berth_api::JwtAuthenticator;

/// What is remembered of a tenant's issuers.
#[derive(Debug, Default)]
pub(super) struct IssuerMemory {
    /// Those with which an API server has started; none: they were not read yet.
    pub(super) proven: Option<Vec<JwtAuthenticator>>,
    /// Hash of everything but the issuers in the API servers that run. None: others may run, or that is not known.
    pub(super) others_rolled_out: Option<String>,
}
