//! Admission requests of the API server (`AdmissionReview`) and the responses to them. Pure.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::borrow::Cow;

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

/// A review about a Service, as text: its objects are not read yet.
#[derive(Debug)]
pub struct Review<'a> {
    operation: Operation,
    request: ReviewRequest<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    request: ReviewRequest<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'a> {
    uid: String,
    kind: GroupVersionKind,
    sub_resource: Option<String>,
    operation: String,
    namespace: Option<String>,
    dry_run: Option<bool>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct GroupVersionKind {
    /// The core group is empty.
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

const NO_REVIEW: &str = "not an AdmissionReview of admission.k8s.io/v1";

impl<'a> Review<'a> {
    /// Reads a review about a Service.
    ///
    /// # Errors
    /// The review is about something else.
    pub fn read(review: &'a [u8]) -> Result<Self, &'static str> {
        let AdmissionReview { api_version, request } = serde_json::from_slice(review).map_err(|_| NO_REVIEW)?;
        if api_version != "admission.k8s.io/v1" {
            return Err(NO_REVIEW);
        }
        // A tenant can point webhooks of its own here.
        let GroupVersionKind { group, version, kind } = &request.kind;
        let is_service = [group.as_str(), version, kind] == ["", "v1", "Service"];
        if !is_service || request.sub_resource.as_ref().is_some_and(|sub| !sub.is_empty()) {
            return Err("not about a Service");
        }
        let operation = match request.operation.as_str() {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            _ => return Err("neither a creation nor an update"),
        };
        Ok(Self { operation, request })
    }

    /// Identifies the request.
    pub fn uid(&self) -> &str {
        &self.request.uid
    }

    /// The objects of [the request](Self::request) as text: what they take as trees can be much more.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        let ReviewRequest { object, old_object, .. } = &self.request;
        [object, old_object].into_iter().flatten().map(|text| text.get())
    }

    /// Reads the objects.
    ///
    /// # Errors
    /// They are none.
    pub fn request(self) -> Result<Request, &'static str> {
        let Self { operation, request } = self;
        let object = |text: Option<&RawValue>| {
            let read = text.map(|text| serde_json::from_str(text.get())).transpose();
            read.map(Option::unwrap_or_default).map_err(|_| NO_REVIEW)
        };
        Ok(Request {
            uid: request.uid,
            operation,
            namespace: request.namespace.unwrap_or_default(),
            dry_run: request.dry_run.unwrap_or_default(),
            object: object(request.object)?,
            old: object(request.old_object)?,
        })
    }
}

/// The UID of the request of a review of which only the beginning is known: API servers write it first.
pub fn find_uid(beginning: &[u8]) -> Option<&str> {
    const BEFORE: &str = r#""request":{"uid":""#;
    let beginning = beginning.utf8_chunks().next()?.valid();
    let (_, after) = beginning.split_once(BEFORE)?;
    let (uid, _) = after.split_once('"')?;
    (!uid.is_empty() && !uid.contains('\\')).then_some(uid)
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

    /// The request is larger than what can be decided.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self {
            code: 413,
            reason: "RequestEntityTooLarge",
            message: message.into(),
            retry_after: None,
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

    fn review(kind: &str, operation: &str, sub: &str) -> Vec<u8> {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": {"group": "", "version": "v1", "kind": kind}, "subResource": sub, "operation": operation,
            "namespace": "shop", "dryRun": true, "object": {"a": 1}, "oldObject": null}});
        review.to_string().into_bytes()
    }

    #[test]
    fn only_requests_about_services_are_read() {
        let text = review("Service", "CREATE", "");
        let request = Review::read(&text).unwrap().request().unwrap();
        assert_eq!(request.operation, Operation::Create);
        assert_eq!((request.uid.as_str(), request.namespace.as_str()), ("u", "shop"));
        assert!(request.dry_run && request.old.is_null());
        assert_eq!(request.object, json!({"a": 1}));
        for other in [
            review("Secret", "CREATE", ""),
            review("Service", "DELETE", ""),
            review("Service", "UPDATE", "status"),
            b"{}".to_vec(),
            b"no JSON".to_vec(),
        ] {
            assert!(Review::read(&other).is_err());
        }
    }

    #[test]
    fn what_an_api_server_leaves_out_or_adds_is_no_error() {
        let text = r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "new": {}, "request": {"uid": "u", "new": [1],
            "kind": {"version": "v1", "kind": "Service"}, "operation": "UPDATE", "dryRun": null, "object": null, "options": null}}"#;
        let request = Review::read(text.as_bytes()).unwrap().request().unwrap();
        assert_eq!((request.operation, request.namespace.as_str()), (Operation::Update, ""));
        assert!(!request.dry_run && request.object.is_null() && request.old.is_null());
    }

    #[test]
    fn the_beginning_of_a_review_says_which_it_is() {
        let text = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5","kind":{"group":""#;
        assert_eq!(find_uid(text.as_bytes()), Some("705ab4f5"));
        let cut = text.split_at(80).0.as_bytes();
        assert_eq!(find_uid(cut), None, "{cut:?}");
        let mut broken = text.as_bytes().to_vec();
        broken.push(0xc3);
        assert_eq!(find_uid(&broken), Some("705ab4f5"), "a character is cut");
        for other in ["", "{}", r#"{"request":{"uid":""}}"#, r#"{"request":{"uid":"\u0041"}}"#] {
            assert_eq!(find_uid(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_objects_of_a_request_are_known_before_they_are_read() {
        let text = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Service"},
            "operation": "UPDATE", "object": {"a":1}, "oldObject": {"b":[]}}}"#;
        let review = Review::read(text.as_bytes()).unwrap();
        assert_eq!(review.objects().collect::<Vec<_>>(), [r#"{"a":1}"#, r#"{"b":[]}"#]);
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
