//! Replacing the authority that signs a tenant's client certificates, in steps that lock nobody out: pure.
//!
//! | phase | signs | the API server trusts | ends when |
//! |---|---|---|---|
//! | Trusting | the old authority | both | every API server that runs trusts both |
//! | Issuing | the new authority | both | every client of Berth's runs with a certificate of the new one |
//! | Revoking | the new authority | the new one | every API server that runs trusts the new one alone |
//!
//! The phase is in the same Secret as the authorities, and each step is one write of it. Everything else is rendered from it again and
//! again, so that it does not matter where a process is killed. The key of the old authority is gone as soon as nothing is signed with
//! it.

use super::certificates::{AUTHORITY_VALIDITY, CertificateError};
use berth_api::{RotationPhase, RotationRequest};
use berth_pki::CertificateAuthority;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Key of the state in the Secret of the authorities.
const STATE: &str = "client-rotation.json";
/// Certificate and key of the authority that signs.
const CURRENT: [&str; 2] = ["client-ca.crt", "client-ca.key"];
/// Certificate and key of the authority that will sign.
const NEXT: [&str; 2] = ["client-next-ca.crt", "client-next-ca.key"];
/// Certificate of the authority that signed before.
const PREVIOUS: &str = "client-previous-ca.crt";

/// The last rotation of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// Its step.
    pub phase: RotationPhase,
    /// Since when it is at this step.
    pub since: Timestamp,
}

/// What is known of what runs. An error says what is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationFacts {
    /// Whether every API server that runs, also one that ends, has the certificates that were rendered last.
    pub api_servers: Result<(), String>,
    /// The same of every client of Berth's, and whether what is outside of the control plane was written.
    pub clients: Result<(), String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Nothing: there is no rotation to do.
    Rest,
    /// Nothing yet: this is waited for.
    Wait(String),
    /// Make a new authority, for the request of this time.
    Begin(Timestamp),
    /// Go on to this phase.
    Enter(RotationPhase),
}

impl Rotation {
    /// The rotation that is recorded beside the authorities in `stored`; none if there never was one.
    ///
    /// # Errors
    /// The record is damaged.
    pub fn read(stored: &BTreeMap<String, String>) -> Result<Option<Self>, CertificateError> {
        let Some(text) = stored.get(STATE) else {
            return Ok(None);
        };
        let read = serde_json::from_str(text);
        read.map(Some)
            .map_err(|error| CertificateError::Rotation(error.to_string()))
    }

    /// Whether its phase has waited for as long as it may.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.is_under_way() && now.as_second() - self.since.as_second() >= PHASE_SECONDS
    }

    /// Whether it is under way.
    pub fn is_under_way(&self) -> bool {
        self.phase != RotationPhase::Completed
    }
}

/// The time of a request that is to be carried out now: it is later than the last one that was begun, and not in the future, so that a
/// mistaken date does not hide later requests.
pub fn due_request(recorded: Option<&Rotation>, request: RotationRequest, now: Timestamp) -> Option<Timestamp> {
    let RotationRequest::At(at) = request else { return None };
    let is_new = recorded.is_none_or(|recorded| at > recorded.requested_at);
    (is_new && at <= now).then_some(at)
}

/// Seconds that a phase waits for what runs to follow. Who has a leaked certificate may be an administrator of the tenant, and hold it up. Then
/// the old authority is revoked although a client has no new certificate yet, and an old API server ends before a new one is ready.
pub const PHASE_SECONDS: i64 = 15 * 60;

/// What to do next. A request that is made during a rotation begins another one after it: the credential that leaked may be one of the new
/// authority.
pub fn next_step(
    recorded: Option<&Rotation>,
    due: Option<Timestamp>,
    facts: &RotationFacts,
    now: Timestamp,
) -> RotationStep {
    let after = |observed: &Result<(), String>, phase| match observed {
        Ok(()) => RotationStep::Enter(phase),
        Err(missing) => RotationStep::Wait(missing.clone()),
    };
    match recorded.map(|recorded| recorded.phase) {
        None | Some(RotationPhase::Completed) => due.map_or(RotationStep::Rest, RotationStep::Begin),
        Some(RotationPhase::Trusting) => after(&facts.api_servers, RotationPhase::Issuing),
        // An API server of a moment ago that does not know the new authority would refuse clients.
        Some(RotationPhase::Issuing) => match &facts.api_servers {
            Ok(()) if recorded.is_some_and(|recorded| recorded.is_overdue(now)) => {
                RotationStep::Enter(RotationPhase::Revoking)
            }
            Ok(()) => after(&facts.clients, RotationPhase::Revoking),
            Err(missing) => RotationStep::Wait(missing.clone()),
        },
        Some(RotationPhase::Revoking) => after(&facts.api_servers, RotationPhase::Completed),
    }
}

impl RotationStep {
    /// Changes what is stored of the tenant called `tenant` at the time `now`. Returns the rotation as it is then.
    ///
    /// # Errors
    /// What is stored is damaged, or no key can be made.
    pub fn carry_out(
        &self,
        stored: &mut BTreeMap<String, String>,
        tenant: &str,
        now: Timestamp,
    ) -> Result<Option<Rotation>, CertificateError> {
        let recorded = Rotation::read(stored)?;
        let (requested_at, phase) = match (self, recorded) {
            (Self::Rest | Self::Wait(_), recorded) => return Ok(recorded),
            (Self::Begin(at), _) => (*at, RotationPhase::Trusting),
            (Self::Enter(phase), Some(recorded)) => (recorded.requested_at, *phase),
            (Self::Enter(_), None) => return Err(CertificateError::Missing(STATE.into())),
        };
        match phase {
            RotationPhase::Trusting => {
                // Its subject differs from that of the one before.
                let name = format!("berth:{tenant}:client:{}", now.as_second());
                let authority = CertificateAuthority::create(&name, AUTHORITY_VALIDITY)?;
                for (file, text) in NEXT.into_iter().zip([authority.cert_pem(), authority.key_pem()]) {
                    stored.insert(file.into(), text.to_owned());
                }
            }
            RotationPhase::Issuing => {
                let mut take = |name: &str| {
                    let text = stored.remove(name);
                    text.ok_or_else(|| CertificateError::Missing(name.to_owned()))
                };
                let (previous, certificate, key) = (take(CURRENT[0])?, take(NEXT[0])?, take(NEXT[1])?);
                stored.insert(PREVIOUS.into(), previous);
                for (file, text) in CURRENT.into_iter().zip([certificate, key]) {
                    stored.insert(file.into(), text);
                }
            }
            RotationPhase::Revoking => {
                stored.remove(PREVIOUS);
            }
            RotationPhase::Completed => {}
        }
        let after = Rotation {
            requested_at,
            phase,
            since: now,
        };
        // It cannot fail: there are only texts.
        stored.insert(STATE.into(), serde_json::to_string(&after).unwrap_or_default());
        Ok(Some(after))
    }
}

/// The certificates of the authorities whose clients the API server accepts, the oldest first: the bundle stays the same when the next one
/// begins to sign, so that API servers are not replaced then.
pub fn trusted_bundle(stored: &BTreeMap<String, String>) -> String {
    [PREVIOUS, CURRENT[0], NEXT[0]]
        .into_iter()
        .filter_map(|name| stored.get(name))
        .flat_map(|pem| [pem.trim_end(), "\n"])
        .collect()
}

#[cfg(test)]
#[path = "client_authority_tests.rs"]
mod tests;
