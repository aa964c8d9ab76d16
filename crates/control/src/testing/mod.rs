//! What tests of controllers use instead of servers.

mod api;
mod contents;
mod runtime;
mod stores;

pub(crate) use api::{NEVER_ENDS, ScriptedApi};
pub(crate) use contents::MemoryContents;
pub(crate) use json_patch::merge;
pub(crate) use runtime::{Applied, ScriptedRuntime, VERSION};
pub(crate) use stores::{StoreWriters, TEAM_NAMESPACES};

use berth_runtime::{corrected::CorrectAnswers, locks::lock};
use http::{Request, Response};
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use tower::{BoxError, Service};

/// A client of a server in memory, which reads its answers as control reads those of API servers.
pub(crate) fn client_of<S>(server: S) -> Client
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    ClientBuilder::new(server, "default")
        .with_layer(&CorrectAnswers::All)
        .build()
}

/// Options of a bucket at this endpoint, with which no other one is asked for credentials.
pub(crate) fn options_of_bucket(endpoint: &str) -> Vec<(String, String)> {
    let options = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
    ];
    options
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// A time that Kubernetes stores and no type of a client holds.
pub(crate) const LATE: &str = "9999-12-31T00:00:00Z";

/// Gives an object writers at such a time and with fields that are nested too deep.
pub(crate) fn make_unreadable(object: &mut Value) {
    let deep = (0..200).fold(json!({}), |inner, _| json!({"f:a": inner}));
    let writer = json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "time": LATE, "fieldsType": "FieldsV1", "fieldsV1": deep});
    object["metadata"]["managedFields"] = json!([writer]);
}

/// All calls that a controller makes, in order, and which of them fails.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    failing: Option<usize>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The server and the request, such as `host PATCH /api/v1/namespaces/a`.
    pub(crate) text: String,
    pub(crate) failed: bool,
}

impl Script {
    /// The call with this number, counted from 0, will fail; those before and after it succeed.
    pub(crate) fn fail_call(&self, number: usize) {
        self.state().failing = Some(number);
    }

    /// Records a call. `false`: it has to fail.
    pub(crate) fn record(&self, text: String) -> bool {
        let mut state = self.state();
        let failed = state.failing == Some(state.calls.len());
        state.calls.push(Call { text, failed });
        !failed
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// Number of the first call that succeeded and whose text contains `part`.
    pub(crate) fn first(&self, part: &str) -> Option<usize> {
        let state = self.state();
        state
            .calls
            .iter()
            .position(|call| !call.failed && call.text.contains(part))
    }

    /// The call that failed, if it was reached.
    pub(crate) fn failed(&self) -> Option<String> {
        let state = self.state();
        Some(state.calls.iter().find(|call| call.failed)?.text.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}
