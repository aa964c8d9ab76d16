//! Tokens of pods, and which user a token authenticates.

use crate::tenant::patient_with;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, SelfSubjectReview, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{Api, Client, ResourceExt, api::PostParams, config::Kubeconfig};

/// What a kubelet asks for when it mounts a pod's token.
pub fn request_of(pod: &Pod) -> TokenRequest {
    TokenRequest {
        spec: Some(TokenRequestSpec {
            // As in the volume that API servers add to pods.
            expiration_seconds: Some(3607),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: Some(pod.name_any()),
                uid: pod.uid(),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    }
}

/// A token of the ServiceAccount `default` of the namespace `default` of a cluster, requested for so many seconds.
pub async fn of_default_account(client: &Client, seconds: i64) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(seconds),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request("default", &PostParams::default(), &request)
        .await
        .unwrap();
    answer.status.unwrap().token.unwrap()
}

/// A client that authenticates to the API server of a kubeconfig with a token only.
pub async fn client(kubeconfig: &str, token: &str) -> Client {
    let mut kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let user = serde_json::from_value(serde_json::json!({"token": token})).unwrap();
    kubeconfig.auth_infos[0].auth_info = Some(user);
    patient_with(kubeconfig).await
}

/// The user that a token authenticates at the API server of a kubeconfig.
///
/// # Errors
/// The code with which it refuses.
pub async fn user(kubeconfig: &str, token: &str) -> Result<String, u16> {
    let reviews: Api<SelfSubjectReview> = Api::all(client(kubeconfig, token).await);
    match reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
    {
        Ok(review) => Ok(review
            .status
            .and_then(|status| status.user_info?.username)
            .unwrap_or_default()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("no answer at all: {error}"),
    }
}
