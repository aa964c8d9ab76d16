//! Objects that are watched for everybody, of which one must not end the watch for all others, and of which no number and no size takes
//! the memory of the program.
//!
//! A client parses a page of a list as a whole. Kubernetes accepts objects that the types of this client do not: times at the end of the year 9999,
//! which anybody may write into `metadata.managedFields` of what they may change, and JSON that is nested more than 128 times. One such object in
//! a page would make the list fail again and again, and with it everything that waits for the list. [`corrected`](crate::corrected) makes most of them
//! readable; what it does not know of must not end a watch either.
//!
//! Objects take much more memory than their text: a tree of JSON a hundred times as much, and a type of Kubernetes twenty times. So a page is kept as
//! texts without `managedFields`, and each object is parsed when its turn comes; pages are [limited in bytes](crate::page_limit) as well.

mod pages;
mod trim;

pub use pages::{PAGE, for_each, list_page, watch};

use kube::{
    Resource,
    core::ObjectMeta,
    runtime::watcher::{self, Event},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt, future, marker::PhantomData};

/// An object of a list or a watch, which is parsed by [`Watched::readable`].
#[derive(Clone)]
pub struct Watched<K> {
    /// Its name, namespace, UID and resource version; nothing else.
    meta: ObjectMeta,
    /// The object as JSON, without `metadata.managedFields`.
    text: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Watched<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectMeta { name, namespace, .. } = &self.meta;
        let mut fields = formatter.debug_struct("Watched");
        fields.field("namespace", namespace).field("name", name);
        fields.finish_non_exhaustive()
    }
}

impl<'de, K> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (meta, text) = trim::trim(Box::<RawValue>::deserialize(deserializer)?.into());
        Ok(Self {
            meta,
            text,
            kind: PhantomData,
        })
    }
}

impl<K: Resource> Resource for Watched<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl<K: Resource + DeserializeOwned> Watched<K> {
    /// The object. One that cannot be read is logged, and left out.
    pub fn readable(self) -> Option<K> {
        match serde_json::from_str(&self.text) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(
                    object = std::any::type_name::<K>(),
                    namespace = self.meta.namespace,
                    name = self.meta.name,
                    %error,
                    "an object cannot be read, and is as it was before, or as if it did not exist: look who wrote it"
                );
                None
            }
        }
    }

    /// The object that was deleted, or another one with its name if it cannot be read.
    fn deleted(self) -> Option<K> {
        serde_json::from_str(&self.text)
            .or_else(|_| serde_json::from_value(serde_json::json!({ "metadata": self.meta })))
            .ok()
    }
}

/// The events of a watch that are of objects that can be read. Use it with `try_filter_map`.
fn readable<K: Resource + DeserializeOwned>(
    event: Event<Watched<K>>,
) -> future::Ready<Result<Option<Event<K>>, watcher::Error>> {
    future::ready(Ok(match event {
        Event::Apply(object) => object.readable().map(Event::Apply),
        Event::InitApply(object) => object.readable().map(Event::InitApply),
        Event::Delete(object) => object.deleted().map(Event::Delete),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }))
}

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod tests;
