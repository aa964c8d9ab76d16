//! Decides about requests for Services.

use crate::engine::{
    Engine,
    api::CallError,
    endpoint_changes::describe_too_many_services,
    reserve::{Connections, ReservationRequest, ReserveError, TAKEN_ADDRESS, TAKEN_PORT},
};
use berth_sync_rules::admission::review::{Denial, Operation, Request, Verdict};
use berth_sync_rules::{
    kinds::service::allocation,
    model::{
        DesiredState, KindId, denied_field, json,
        resource::{Name, host_name},
    },
    translation::host_text,
};
use serde_json::{Value, json};

/// Characters of generated names, as API servers choose them: none that make words.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters that are added to a prefix, as API servers do.
const RANDOM: usize = 5;
/// Longest name of a Service.
const LONGEST: usize = 63;

/// Answers a request: creates or changes the host's Service first, if something has to be allocated.
pub(crate) async fn answer(engine: &Engine, connections: &Connections, request: &Request) -> Verdict {
    let Some(rules) = engine.cache().rules_to_host(KindId::Service) else {
        return Verdict::Allow(Vec::new());
    };
    let old = Some(&request.old).filter(|_| request.operation == Operation::Update);
    // One that is being deleted may always lose its finalizers.
    if old.is_some_and(|old| is_same(&request.object, old)) || json::is_deleted(&request.object) {
        return Verdict::Allow(Vec::new());
    }
    let (name, mut changes) = match name_of(&request.object) {
        Ok(named) => named,
        Err(denial) => return Verdict::Deny(denial),
    };
    let name = Name::new(&request.namespace, &name);
    let cache = engine.cache();
    if rules.desired_state(cache, &name, &request.object) != DesiredState::Sync {
        return Verdict::Allow(Vec::new());
    }
    let translated = match rules.translate(cache, &name, &request.object) {
        Ok(translated) => translated,
        Err(denied) => return Verdict::Deny(Denial::forbidden(denied_field::message(&denied))),
    };
    if !allocation::is_needed(&request.object, old) {
        return Verdict::Allow(Vec::new());
    }
    let reservation = ReservationRequest {
        connections,
        id: KindId::Service,
        rules,
        name: &name,
        origin: old.and_then(|old| json::text(old, &["metadata", "uid"])),
        object: translated.object,
        dry_run: request.dry_run,
    };
    match engine.reserve(reservation).await {
        // In a dry run an API server allocates nothing: it returns the first address of its range, which no Service can
        // have. The tenant's own API server does the same.
        Ok(_) if request.dry_run => Verdict::Allow(Vec::new()),
        Ok(host) => {
            changes.extend(allocation::patch(&request.object, &host));
            Verdict::Allow(changes)
        }
        // The API server says so itself, with the message that clients know.
        Err(ReserveError::Exists) => Verdict::Allow(Vec::new()),
        Err(error) => Verdict::Deny(denial(engine, &name, error)),
    }
}

/// Whether nothing has changed that matters on the host.
fn is_same(object: &Value, old: &Value) -> bool {
    let annotations = |service: &Value| json::strings(service, &["metadata", "annotations"]);
    object.get("spec") == old.get("spec") && annotations(object) == annotations(old)
}

/// The name, and the change that writes it if it is to be generated: an API server would do so only after admission,
/// but the host's Service is named after it.
fn name_of(object: &Value) -> Result<(String, Vec<Value>), Denial> {
    let text = |field| json::filled(object, &["metadata", field]);
    if let Some(name) = text("name") {
        return Ok((name.to_owned(), Vec::new()));
    }
    let Some(prefix) = text("generateName") else {
        return Err(Denial::invalid("metadata.name: a name is required"));
    };
    let mut random = [0_u8; RANDOM];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| Denial::unavailable("no name could be generated; try again"))?;
    let name = generated(prefix, random);
    let change = json!({"op": "add", "path": "/metadata/name", "value": &name});
    Ok((name, vec![change]))
}

fn generated(prefix: &str, random: [u8; RANDOM]) -> String {
    let prefix = &prefix[..prefix.floor_char_boundary(LONGEST - RANDOM)];
    let suffix = random.map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
    prefix.chars().chain(suffix).collect()
}

fn denial(engine: &Engine, name: &Name, error: ReserveError) -> Denial {
    const LATER: &str = "the host cluster does not answer, so the Service cannot get its address; try again";
    match error {
        ReserveError::Exists | ReserveError::Ending => Denial::exists(format!(
            "object is being deleted: services \"{}\" still has something to clean up; try again",
            name.name
        )),
        ReserveError::Starting => Denial::unavailable("the platform is starting; try again"),
        ReserveError::TooManyServices => {
            let message = format!("{}: try again in a second", describe_too_many_services(engine.cache()));
            Denial::too_many(message, 1)
        }
        ReserveError::NoTurn(later) => {
            let seconds = later.as_secs() + 1;
            let message = format!(
                "this cluster writes more bytes a second to the host cluster than it may: try again in {seconds} s, or ask the platform \
                 team to raise spec.limits.hostWriteBytesPerSecond of the class"
            );
            Denial::too_many(message, seconds)
        }
        ReserveError::NoTry(later) => {
            let seconds = later.as_secs() + 1;
            let message = format!(
                "this cluster makes too many dry runs of Services that need an address or a port: try again in {seconds} s"
            );
            Denial::too_many(message, seconds)
        }
        ReserveError::Foreign => Denial::forbidden("its name on the host cluster is taken; use another name"),
        ReserveError::Call(CallError::Rejected(message) | CallError::Terminating(message)) => {
            Denial::invalid(describe_rejection(engine, name, &message))
        }
        ReserveError::Call(CallError::QuotaExceeded(exceeded)) => Denial::forbidden(exceeded.to_string()),
        ReserveError::Call(CallError::Conflict(_) | CallError::NotFound) => {
            Denial::unavailable("the Service is being changed by others; try again")
        }
        ReserveError::Call(
            CallError::Busy(_) | CallError::Unavailable(_) | CallError::Protected(_) | CallError::Deferred,
        ) => Denial::unavailable(LATER),
    }
}

/// The rejection of the host, as a message for the tenant.
fn describe_rejection(engine: &Engine, name: &Name, message: &str) -> String {
    if message.contains(TAKEN_ADDRESS) {
        return "spec.clusterIP: this address is taken by another Service, of this cluster or of the platform; choose another one, or leave \
                the field out to be given one"
            .into();
    }
    // The host does not have it, so its name there is not known otherwise.
    let message = message.replace(&host_name(KindId::Service, name), &name.name);
    let text = host_text::sanitize_error(engine.cache(), name, &message);
    // As API servers write it: clients look for these words. They do not say that the other Service may be none of the tenant.
    if message.contains(TAKEN_PORT) {
        return format!(
            "{text}, to another Service of this cluster or of the platform; choose another nodePort, or leave the field out to be given one"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::{connections, engine, engine_of, make_services, tenant};
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::store::Stored;

    /// The code and message of the answer to the creation of a Service, or to a change of it.
    async fn answer_to(engine: &Engine, operation: Operation, name: &str) -> (u16, String) {
        let service = |kind: &str| json!({"metadata": {"name": name, "uid": "u"}, "spec": {"type": kind, "selector": {"app": "a"}, "ports": [{"port": 80}]}});
        let request = Request {
            uid: "r".into(),
            operation,
            namespace: "team".into(),
            dry_run: false,
            object: service("ClusterIP"),
            old: service("ExternalName"),
        };
        match answer(engine, &connections(), &request).await {
            Verdict::Deny(denial) => (denial.code, denial.message),
            Verdict::Allow(_) => panic!("no API server has answered"),
        }
    }

    #[tokio::test]
    async fn only_what_would_make_endpoints_is_refused_once_too_many_were_made() {
        let engine = engine();
        let store = engine.cache().stores.tenant(KindId::Service);
        let exists = json!({"metadata": {"name": "exists", "uid": "u"}});
        store.watched(Name::new("team", "exists"), Stored::from(exists));
        store.set_listed();
        let unavailable = |(code, _): &(u16, String)| *code == 503;
        // The default allows 240 to a syncer that starts. Those that are not made take nothing.
        make_services(&engine, 0..239);
        for _ in 0..2 {
            let answered = answer_to(&engine, Operation::Create, "new").await;
            assert!(unavailable(&answered), "{answered:?}");
        }
        make_services(&engine, 239..240);
        for operation in [Operation::Create, Operation::Update] {
            let (code, message) = answer_to(&engine, operation, "new").await;
            assert!(
                code == 429 && message.contains("spec.limits.endpointChangesPerSecond"),
                "{message}"
            );
        }
        // The API server says itself that it exists, once the syncer knows that it still does.
        let answered = answer_to(&engine, Operation::Create, "exists").await;
        assert!(unavailable(&answered), "{answered:?}");
    }

    #[tokio::test]
    async fn what_exists_takes_nothing_from_what_may_be_written() {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.bytes = 1;
        let engine = engine_of(tenant);
        let store = engine.cache().stores.tenant(KindId::Service);
        store.watched(
            Name::new("team", "exists"),
            Stored::from(json!({"metadata": {"name": "exists", "uid": "u"}})),
        );
        store.set_listed();
        let (code, message) = answer_to(&engine, Operation::Create, "new").await;
        assert!(code == 403 && message.contains("hostBytes"), "{message}");
        // It asks the API server, which is not there.
        let (code, message) = answer_to(&engine, Operation::Create, "exists").await;
        assert_eq!(code, 503, "{message}");
    }

    #[tokio::test]
    async fn a_taken_node_port_is_reported_as_by_an_api_server() {
        let name = Name::new("team", "web");
        let rejection = format!(
            "Service \"{}\" is invalid: spec.ports[0].nodePort: Invalid value: 31476: provided port is already allocated",
            host_name(KindId::Service, &name)
        );
        let message = describe_rejection(&engine(), &name, &rejection);
        assert!(message.starts_with("Service \"web\" is invalid: "), "{message}");
        assert!(
            message.contains("Invalid value: 31476: provided port is already allocated, to another"),
            "{message}"
        );
    }

    #[test]
    fn names_are_generated_as_api_servers_do() {
        assert_eq!(generated("web-", [0, 1, 26, 27, 255]), "web-bc9bq");
        let long = generated(&"é".repeat(60), [0; 5]);
        assert!(long.len() <= LONGEST && long.ends_with("bbbbb"));
        let (name, changes) = name_of(&json!({"metadata": {"generateName": "web-"}})).unwrap();
        assert_eq!(changes[0]["value"], name.as_str());
        assert!(name.starts_with("web-") && name.len() == 9);
        assert_eq!(
            name_of(&json!({"metadata": {"name": "web"}})).unwrap().1,
            Vec::<Value>::new()
        );
        assert!(name_of(&json!({"metadata": {}})).is_err());
    }

    #[test]
    fn updates_of_labels_do_not_need_the_host() {
        let old = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"type": "ClusterIP"}});
        let mut new = old.clone();
        new["metadata"]["labels"]["a"] = "c".into();
        assert!(is_same(&new, &old));
        new["metadata"]["annotations"] = json!({"metallb.io/address-pool": "other"});
        assert!(!is_same(&new, &old), "the class may deny it");
        new["metadata"]["annotations"] = json!({});
        assert!(is_same(&new, &old));
        new["spec"]["type"] = "NodePort".into();
        assert!(!is_same(&new, &old));
    }
}
