//! Which user a token authenticates.

use crate::tenant::patient_with;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams, config::Kubeconfig};

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
