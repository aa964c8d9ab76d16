//! What tenants show of what they used.

use super::*;
use berth_api::MonthlyUsage;
use berth_metering::summarize;

impl Fixture {
    fn status_of(&self, name: &str) -> Value {
        self.host.get(&tenant_path(name)).unwrap()["status"].clone()
    }

    /// What a tenant shows.
    fn shown(&self, name: &str) -> Vec<MonthlyUsage> {
        serde_json::from_value(self.status_of(name)["monthlyUsage"].clone()).unwrap_or_default()
    }

    /// Lets the tenant show something else.
    fn forge(&self, shown: Value) {
        let mut cluster = self.host.get(&tenant_path("vision")).unwrap();
        cluster["status"]["monthlyUsage"] = shown;
        self.host.insert(&tenant_path("vision"), cluster);
    }

    /// Months and GPU-hours that the tenant shows.
    fn gpu_hours(&self) -> Vec<(String, String)> {
        let of_month = |summary: MonthlyUsage| {
            let mut hours = summary.hours.into_iter();
            let gpus = hours.find(|hours| hours.resource == UsageResource::Gpu);
            (summary.month, gpus.map(|gpus| gpus.hours).unwrap_or_default())
        };
        self.shown("vision").into_iter().map(of_month).collect()
    }
}

#[tokio::test]
async fn a_tenant_shows_what_its_record_says_and_nothing_is_written_between_records() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -3600);
    fixture.pass().await.unwrap();
    assert_eq!(fixture.shown("vision"), [summarize(&fixture.record())]);
    assert_eq!(fixture.gpu_hours(), [("2026-11".to_owned(), "8.0".to_owned())]);
    assert_eq!(fixture.status_of("vision")["className"], "gold", "the rest stays");
    // The record of the pool, which begins with the first pass.
    fixture.advance_to(1);
    fixture.pass().await.unwrap();
    let calls = fixture.calls();
    fixture.pass().await.unwrap();
    assert_eq!(fixture.calls(), calls);
    fixture.advance_to(3600);
    fixture.pass().await.unwrap();
    assert_eq!(
        fixture.calls(),
        calls + 3,
        "the records of the tenant and the pool, and the status"
    );
    assert_eq!(fixture.gpu_hours(), [("2026-11".to_owned(), "16.0".to_owned())]);
}

#[tokio::test]
async fn a_status_that_says_something_else_is_written_again() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -3600);
    fixture.pass().await.unwrap();
    let shown = fixture.shown("vision");
    // Somebody writes it, or control was killed before it did.
    for forged in [
        json!([]),
        json!([{"month": "2020-01", "meteredThrough": at(0).to_string(), "hours": []}]),
    ] {
        fixture.forge(forged);
        fixture.restart();
        fixture.pass().await.unwrap();
        assert_eq!(fixture.shown("vision"), shown);
    }
}

#[tokio::test]
async fn a_tenant_whose_record_cannot_be_read_shows_what_it_showed() {
    let mut fixture = Fixture::new();
    fixture.pass().await.unwrap();
    let shown = fixture.shown("vision");
    assert_eq!(shown.len(), 1);
    // Another version of Berth has written it.
    let path = format!("{RECORDS}/{}-2026-11", slug());
    let mut newer = fixture.host.get(&path).unwrap();
    newer["spec"]["lines"][0]["resource"] = "Network".into();
    fixture.host.insert(&path, newer);
    fixture.restart();
    fixture.advance_to(3600);
    fixture.pass().await.unwrap_err();
    assert_eq!(fixture.shown("vision"), shown);
}

#[tokio::test]
async fn two_months_are_shown() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -3600);
    fixture.pass().await.unwrap();
    // 2026-12-01T01:00:00Z.
    fixture.advance_to(20 * 86_400 + 13 * 3600);
    fixture.pass().await.unwrap();
    let of = |month: &str, hours: &str| (month.to_owned(), hours.to_owned());
    let november = of("2026-11", "3944.0");
    assert_eq!(fixture.gpu_hours(), [of("2026-12", "8.0"), november.clone()]);
    // Another control reads both from the records.
    fixture.forge(json!([]));
    fixture.restart();
    fixture.pass().await.unwrap();
    assert_eq!(fixture.gpu_hours(), [of("2026-12", "8.0"), november]);
    // 2027-01-01T05:00:00Z.
    fixture.advance_to(51 * 86_400 + 17 * 3600);
    fixture.pass().await.unwrap();
    let months: Vec<String> = fixture.gpu_hours().into_iter().map(|(month, _)| month).collect();
    assert_eq!(months, ["2027-01", "2026-12"]);
}

#[tokio::test]
async fn a_status_that_cannot_be_written_keeps_no_record_and_no_other_status_back() {
    let mut fixture = Fixture::new();
    fixture.put_tenant("speech", "u2", &json!({}));
    fixture
        .host
        .refuse_writes(Some(("/tenantclusters/vision", 422, "the object is invalid")));
    let error = fixture.pass().await.unwrap_err();
    assert!(error.to_string().contains("cannot show what a tenant used"), "{error}");
    assert_eq!(fixture.records().len(), 2);
    assert!(fixture.shown("vision").is_empty());
    assert_eq!(fixture.shown("speech").len(), 1);
    // It was deleted meanwhile.
    fixture
        .host
        .refuse_writes(Some(("/tenantclusters/vision", 404, "not found")));
    fixture.pass().await.unwrap();
    fixture.host.refuse_writes(None);
    fixture.pass().await.unwrap();
    assert_eq!(fixture.shown("vision").len(), 1);
}
