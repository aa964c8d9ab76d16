//! The HTTP client of a bucket. A server could answer without end, and the client of object stores keeps answers in memory, also those that
//! are errors.

use super::bucket::PART_BYTES;
use async_trait::async_trait;
use http_body_util::{BodyExt as _, Limited};
use object_store::{
    ClientOptions, Result as StoreResult,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
        ReqwestConnector,
    },
};

/// Bytes of an answer at most. None that is asked for has more than a part.
const MAX_ANSWER: usize = PART_BYTES;

/// Connects clients whose answers are bounded.
#[derive(Debug, Default)]
pub(super) struct BoundedConnector(ReqwestConnector);

impl HttpConnector for BoundedConnector {
    fn connect(&self, options: &ClientOptions) -> StoreResult<HttpClient> {
        Ok(HttpClient::new(BoundedClient(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct BoundedClient(HttpClient);

#[async_trait]
impl HttpService for BoundedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        Ok(answer.map(|body| {
            let body = Limited::new(body, MAX_ANSWER);
            // What the client decides about a repetition, it decides by the kind of the error.
            HttpResponseBody::new(body.map_err(|error| match error.downcast::<HttpError>() {
                Ok(error) => *error,
                Err(error) => HttpError::new_boxed(HttpErrorKind::Decode, error),
            }))
        }))
    }
}
