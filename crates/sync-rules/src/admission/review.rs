//! Admission requests of the API server (`AdmissionReview`) and the responses to them. Pure.

use crate::model::json;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

/// What is being done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A creation, by any verb.
    Create,
    /// An update.
    Update,
}

impl Operation {
    /// For metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
        }
    }
}

/// An admission request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identifies the request; the response repeats it.
    pub uid: String,
    /// What is being done.
    pub operation: Operation,
    /// Namespace of the object.
    pub namespace: String,
    /// Whether nothing may be stored.
    pub dry_run: bool,
    /// The requested object.
    pub object: Value,
    /// The stored object; null for a creation.
    pub old: Value,
}

impl Request {
    /// Reads a request about a Service.
    ///
    /// # Errors
    /// The review is about something else.
    pub fn read(mut review: Value) -> Result<Self, &'static str> {
        let mut request = review.get_mut("request").map(Value::take).unwrap_or_default();
        if json::text(&review, &["apiVersion"]) != Some("admission.k8s.io/v1") {
            return Err("not an AdmissionReview of admission.k8s.io/v1");
        }
        // A tenant can point webhooks of its own here.
        let is_service = ["group", "version", "kind"].map(|part| json::text(&request, &["kind", part]).unwrap_or(""))
            == ["", "v1", "Service"];
        if !is_service || json::text(&request, &["subResource"]).is_some_and(|sub| !sub.is_empty()) {
            return Err("not about a Service");
        }
        let operation = match json::text(&request, &["operation"]) {
            Some("CREATE") => Operation::Create,
            Some("UPDATE") => Operation::Update,
            _ => return Err("neither a creation nor an update"),
        };
        let text = |field| json::text(&request, &[field]).unwrap_or_default().to_owned();
        let (uid, namespace) = (text("uid"), text("namespace"));
        let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
        let mut take = |field| request.get_mut(field).map(Value::take).unwrap_or_default();
        Ok(Self {
            uid,
            operation,
            namespace,
            dry_run,
            object: take("object"),
            old: take("oldObject"),
        })
    }
}

/// Why something is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// HTTP status code.
    pub code: u16,
    /// Reason as in the API, for programs.
    pub reason: &'static str,
    /// A message for the tenant.
    pub message: String,
    /// Seconds after which the same request may succeed: clients of Kubernetes repeat it by themselves then. None: they do not.
    pub retry_after: Option<u64>,
}

impl Denial {
    /// The request is not allowed here.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self {
            code: 403,
            reason: "Forbidden",
            message: message.into(),
            retry_after: None,
        }
    }

    /// The request cannot be satisfied.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: 422,
            reason: "Invalid",
            message: message.into(),
            retry_after: None,
        }
    }

    /// The request cannot be satisfied now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            code: 503,
            reason: "ServiceUnavailable",
            message: message.into(),
            retry_after: None,
        }
    }

    /// There are too many such requests; the same one may succeed after so many seconds.
    pub fn too_many(message: impl Into<String>, seconds: u64) -> Self {
        Self {
            code: 429,
            reason: "TooManyRequests",
            message: message.into(),
            retry_after: Some(seconds),
        }
    }

    /// The object exists already.
    pub fn exists(message: impl Into<String>) -> Self {
        Self {
            code: 409,
            reason: "AlreadyExists",
            message: message.into(),
            retry_after: None,
        }
    }
}

impl Denial {
    fn status(self) -> Value {
        let Self {
            code,
            reason,
            message,
            retry_after,
        } = self;
        let mut status = json!({"code": code, "reason": reason, "message": message});
        if let Some(seconds) = retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        status
    }
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allow the request with these changes (JSON patch operations).
    Allow(Vec<Value>),
    /// Deny the request.
    Deny(Denial),
}

impl Verdict {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allow(changes) if changes.is_empty() => "allowed",
            Self::Allow(_) => "changed",
            Self::Deny(denial) if denial.code >= 500 => "failed",
            Self::Deny(_) => "denied",
        }
    }

    /// The response to the request `uid`.
    pub fn answer(self, uid: &str) -> Value {
        let response = match self {
            Self::Allow(changes) if changes.is_empty() => json!({"uid": uid, "allowed": true}),
            Self::Allow(changes) => json!({
                "uid": uid,
                "allowed": true,
                "patchType": "JSONPatch",
                "patch": BASE64_STANDARD.encode(Value::from(changes).to_string()),
            }),
            Self::Deny(denial) => json!({"uid": uid, "allowed": false, "status": denial.status()}),
        };
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(kind: &str, operation: &str, sub: &str) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": {"group": "", "version": "v1", "kind": kind}, "subResource": sub, "operation": operation,
            "namespace": "shop", "dryRun": true, "object": {"a": 1}, "oldObject": null}})
    }

    #[test]
    fn only_requests_about_services_are_read() {
        let request = Request::read(review("Service", "CREATE", "")).unwrap();
        assert_eq!(request.operation, Operation::Create);
        assert_eq!((request.uid.as_str(), request.namespace.as_str()), ("u", "shop"));
        assert!(request.dry_run && request.old.is_null());
        assert_eq!(request.object, json!({"a": 1}));
        for other in [
            review("Secret", "CREATE", ""),
            review("Service", "DELETE", ""),
            review("Service", "UPDATE", "status"),
            json!({}),
        ] {
            assert!(Request::read(other).is_err());
        }
    }

    #[test]
    fn answers_are_what_the_api_defines() {
        let changes = vec![json!({"op": "add", "path": "/spec/clusterIP", "value": "10.96.0.9"})];
        let verdicts = [
            Verdict::Allow(Vec::new()),
            Verdict::Allow(changes),
            Verdict::Deny(Denial::forbidden("no")),
            Verdict::Deny(Denial::too_many("later", 2)),
        ];
        insta::assert_yaml_snapshot!(verdicts.map(|verdict| verdict.answer("u")));
    }
}
