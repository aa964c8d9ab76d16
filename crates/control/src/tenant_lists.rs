//! Lists of objects in a tenant, read page by page.
//!
//! A tenant decides how large its objects are: each has up to 1.5 MiB in etcd, and as JSON up to six times that. The client of a tenant reads
//! [so much](MAX_ANSWER) of an answer and no more, so some pages are too long for it. The reader then asks for smaller pages.

use crate::tenant_errors::message;
use berth_runtime::answers::{MAX_ANSWER, MAX_TREE, is_too_long};
use kube::{
    Client, Error,
    api::ListParams,
    core::{Request, request},
};
use serde::{Deserialize, de::DeserializeOwned};

/// Objects in a page. The first page has many, so that a few requests read thousands. After a page that is too long, all pages are smaller.
const PAGES: [u32; 4] = [500, 50, 5, 1];

/// What is read of a page.
#[derive(Deserialize)]
#[serde(bound(deserialize = "Item: DeserializeOwned"))]
struct Page<Item> {
    #[serde(default)]
    metadata: PageMetadata,
    /// API servers may write `null` for a list without objects. A page without the field is an error.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// Builds the request for a page: [`Request::list`] or [`Request::list_metadata`].
type BuildRequest = fn(&Request, &ListParams) -> Result<http::Request<Vec<u8>>, request::Error>;

/// Reads a list in a tenant page by page.
///
/// The token that continues a list expires after some minutes, and when control compacts the datastore. The reader does not begin again then, as the
/// caller has used the objects of earlier pages. The caller gets the error, and reads the whole list in its next pass.
pub(crate) struct Pages<'a> {
    client: &'a Client,
    list: Request,
    build: BuildRequest,
    params: ListParams,
    /// Sizes that are left to try. The first one is that of the next page.
    sizes: &'static [u32],
    is_at_end: bool,
}

impl<'a> Pages<'a> {
    /// The objects in the list at a path, such as `/apis/batch/v1/jobs`.
    pub(crate) fn new(client: &'a Client, path: &str) -> Self {
        Self {
            client,
            list: Request::new(path),
            build: Request::list,
            params: ListParams::default(),
            sizes: &PAGES,
            is_at_end: false,
        }
    }

    /// The same objects, but the API server sends only their metadata.
    pub(crate) fn of_metadata(client: &'a Client, path: &str) -> Self {
        Self {
            build: Request::list_metadata,
            ..Self::new(client, path)
        }
    }

    /// Leaves out the objects that do not match a field selector.
    #[must_use]
    pub(crate) fn fields(mut self, selector: &str) -> Self {
        self.params = self.params.fields(selector);
        self
    }

    /// The objects in the next page. None: there are no more pages.
    ///
    /// # Errors
    /// The API server refuses or does not answer, the token has expired, or a page of one object is too long. The text says which.
    pub(crate) async fn next<Item: DeserializeOwned>(&mut self) -> Result<Option<Vec<Item>>, String> {
        if self.is_at_end {
            return Ok(None);
        }
        let page: Page<Item> = loop {
            let &[size, ref smaller @ ..] = self.sizes else {
                return Err(self.too_long());
            };
            self.params.limit = Some(size);
            match self.get().await {
                Ok(page) => break page,
                Err(error) if is_too_long(&error) => self.sizes = smaller,
                Err(error) => return Err(message(&error)),
            }
        };
        self.params.continue_token = page.metadata.next.filter(|token| !token.is_empty());
        self.is_at_end = self.params.continue_token.is_none();
        Ok(Some(page.items.unwrap_or_default()))
    }

    /// Reads one page. Unlike [`Client::request`] this does not log an answer that it cannot parse, which may be of any length.
    async fn get<Item: DeserializeOwned>(&self) -> kube::Result<Page<Item>> {
        let request = (self.build)(&self.list, &self.params).map_err(Error::BuildRequest)?;
        let text = self.client.request_text(request).await?;
        serde_json::from_str(&text).map_err(Error::SerdeError)
    }

    /// What to do about an object that is too large even for a page of its own.
    fn too_long(&self) -> String {
        format!(
            "an object of {} in the tenant is longer than Berth reads ({} MiB, or {} MiB of memory), or the API server sends it too slowly; make \
             the largest objects of this list smaller, or delete them",
            self.list.url_path,
            MAX_ANSWER >> 20,
            MAX_TREE >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_runtime::{answers::LimitAnswers, corrected::CorrectAnswers};
    use http::{Response, header::ACCEPT};
    use kube::client::{Body, ClientBuilder};
    use serde_json::{Value, json};
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    const MIB: usize = 1 << 20;
    const PATH: &str = "/apis/platform.example/v1/guards";

    /// What is read of an object.
    #[derive(Debug, Deserialize)]
    struct Guard {
        number: usize,
    }

    /// The sizes of the pages that were asked for, in order.
    type Asked = Arc<Mutex<Vec<usize>>>;

    /// The value of a parameter of a request, or 0.
    fn parameter(request: &http::Request<Body>, name: &str) -> usize {
        let query = request.uri().query().unwrap_or_default();
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// A client as that of a tenant, whose API server answers like this.
    fn client_of(answer: impl Fn(&http::Request<Body>) -> (u16, Value) + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (code, answer) = answer(&request);
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let builder = ClientBuilder::new(service, "default").with_layer(&LimitAnswers);
        builder.with_layer(&CorrectAnswers::All).build()
    }

    /// A client of an API server with objects of these sizes. Its token for the rest of a list is the number of the objects before.
    fn client_with(sizes: Vec<usize>) -> (Client, Asked) {
        let asked = Asked::default();
        let recorded = Arc::clone(&asked);
        let client = client_of(move |request| {
            let (start, limit) = (parameter(request, "continue="), parameter(request, "limit="));
            recorded.lock().unwrap().push(limit);
            let end = sizes.len().min(start + limit);
            let items: Vec<Value> = (start..end)
                .map(|number| json!({"number": number, "x": "x".repeat(sizes[number])}))
                .collect();
            let token = if end < sizes.len() {
                end.to_string()
            } else {
                String::new()
            };
            (200, json!({"metadata": {"continue": token}, "items": items}))
        });
        (client, asked)
    }

    /// The numbers of all objects.
    async fn read_all(mut pages: Pages<'_>) -> Result<Vec<usize>, String> {
        let mut numbers = Vec::new();
        while let Some(guards) = pages.next::<Guard>().await? {
            numbers.extend(guards.iter().map(|guard| guard.number));
        }
        Ok(numbers)
    }

    #[tokio::test]
    async fn pages_become_smaller_where_objects_are_large_and_each_object_is_read_once() {
        for (sizes, expected) in [
            (vec![], vec![500]),
            (vec![1000; 1500], vec![500; 3]),
            (vec![MIB; 17], vec![500, 50, 5, 5, 5, 5]),
            // Large objects after the first page. The pages stay small after them.
            (
                [vec![10; 500], vec![3 * MIB; 6], vec![10; 10]].concat(),
                vec![500, 500, 50, 5, 5, 5, 5],
            ),
            // Each needs a page of its own.
            (vec![6 * MIB; 3], vec![500, 50, 5, 1, 1, 1]),
        ] {
            let count = sizes.len();
            let (client, asked) = client_with(sizes);
            let numbers = read_all(Pages::new(&client, PATH)).await.unwrap();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>());
            assert_eq!(*asked.lock().unwrap(), expected, "{count}");
        }
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_for_a_page_of_its_own_is_an_error_that_says_what_to_do() {
        let (client, asked) = client_with(vec![MAX_ANSWER]);
        let mut pages = Pages::new(&client, PATH);
        for _ in 0..2 {
            let why = pages.next::<Guard>().await.unwrap_err();
            for part in [PATH, "16 MiB", "smaller, or delete them"] {
                assert!(why.contains(part), "{part}: {why}");
            }
        }
        assert_eq!(*asked.lock().unwrap(), [500, 50, 5, 1], "no page is asked for twice");
    }

    #[tokio::test]
    async fn a_token_that_has_expired_is_an_error_and_the_list_does_not_begin_again() {
        let client = client_of(|request| {
            if parameter(request, "continue=") == 0 {
                return (200, json!({"metadata": {"continue": "1"}, "items": [{"number": 0}]}));
            }
            let message = "The provided continue parameter is too old to display a consistent list result.";
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {"continue": "2"}, "status": "Failure", "message": message,
                "reason": "Expired", "code": 410,
            });
            (410, status)
        });
        let mut pages = Pages::new(&client, PATH);
        assert_eq!(pages.next::<Guard>().await.unwrap().unwrap().len(), 1);
        for _ in 0..2 {
            let why = pages.next::<Guard>().await.unwrap_err();
            assert!(why.starts_with("The provided continue parameter is too old"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_list_without_objects_may_be_null_but_not_missing() {
        let client = client_of(|_| (200, json!({"metadata": {}, "items": null})));
        assert_eq!(read_all(Pages::new(&client, PATH)).await, Ok(vec![]));
        let client = client_of(|_| (200, json!({"metadata": {}})));
        let why = read_all(Pages::new(&client, PATH)).await.unwrap_err();
        assert!(why.contains("items"), "{why}");
    }

    #[tokio::test]
    async fn selectors_are_sent_and_metadata_is_asked_for_by_its_type() {
        let client = client_of(|request| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains("fieldSelector=spec.nodeName%21%3D&"), "{query}");
            let accepted = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            let is_metadata = accepted.is_some_and(|accepted| accepted.contains("as=PartialObjectMetadataList"));
            (200, json!({"items": [{"number": usize::from(is_metadata)}]}))
        });
        for (pages, expected) in [(Pages::new(&client, PATH), 0), (Pages::of_metadata(&client, PATH), 1)] {
            let numbers = read_all(pages.fields("spec.nodeName!=")).await;
            assert_eq!(numbers, Ok(vec![expected]));
        }
    }
}
