use super::*;
use serde_json::{Value, json};

fn rules(value: &Value) -> TenantAuthentication {
    serde_json::from_value(value.clone()).unwrap()
}

fn issuer(url: &str) -> Value {
    json!({
        "issuer": {"url": url, "audiences": ["a", "b"], "audienceMatchPolicy": "MatchAny"},
        "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
    })
}

fn own(value: &Value) -> ResolvedAuthentication {
    ResolvedAuthentication {
        rules: rules(value),
        from_class: false,
    }
}

fn class(authentication: &Value) -> TenantClassSpec {
    serde_json::from_value(json!({ "authentication": authentication })).unwrap()
}

fn urls(resolved: &ResolvedAuthentication) -> Vec<&str> {
    resolved.rules.jwt.iter().map(|one| one.issuer.url.as_str()).collect()
}

const A: &str = "https://a.example.com";
const B: &str = "https://b.example.com";
const C: &str = "https://c.example.com";

#[test]
fn an_issuer_that_the_spec_no_longer_lists_is_gone_and_a_new_one_waits() {
    let accepted = own(&json!({
        "jwt": [issuer(A), issuer(B)], "kubeconfig": {"issuer": A, "clientID": "a"}, "serviceAccountIssuer": "Gateway",
    }));
    let spec = rules(&json!({"jwt": [issuer(C), issuer(B)]}));
    let held = narrow_to_spec(accepted.clone(), Some(&spec), None);
    assert_eq!((urls(&held), held.from_class), (vec![B], false));
    assert_eq!(held.rules.kubeconfig, None, "nobody signs in there");
    assert_eq!(held.rules.service_account_issuer, accepted.rules.service_account_issuer);
    assert_eq!(narrow_to_spec(held.clone(), Some(&spec), None), held, "again");
    // Nothing comes back before the spec is accepted.
    let reverted = narrow_to_spec(held, Some(&accepted.rules), None);
    assert_eq!(urls(&reverted), [B]);
    // The same spec changes nothing.
    assert_eq!(narrow_to_spec(accepted.clone(), Some(&accepted.rules), None), accepted);
}

#[test]
fn rules_and_audiences_of_the_spec_hold_besides_those_that_were_accepted() {
    let (mut before, mut after) = (issuer(A), issuer(A));
    before["claimValidationRules"] = json!([{"claim": "hd", "requiredValue": "example.com"}]);
    before["userValidationRules"] = json!([{"expression": "user.username != 'oidc:mallory'"}]);
    after["claimValidationRules"] = json!([{"expression": "claims.email_verified"}]);
    after["userValidationRules"] = json!([{"expression": "user.username != 'oidc:eve'", "message": "no"}]);
    after["claimMappings"]["username"]["prefix"] = "other:".into();
    after["issuer"]["audiences"] = json!(["b", "c"]);
    let accepted = own(&json!({ "jwt": [before] }));
    let held = narrow_to_spec(accepted.clone(), Some(&rules(&json!({ "jwt": [after] }))), None);
    let [jwt] = held.rules.jwt.as_slice() else {
        panic!("{held:?}")
    };
    let (claims, users) = (&jwt.claim_validation_rules, &jwt.user_validation_rules);
    assert_eq!((claims.len(), users.len()), (2, 2), "{jwt:?}");
    assert!(users.iter().any(|rule| rule.expression.contains("oidc:eve")));
    assert_eq!(jwt.issuer.audiences, ["b"]);
    assert_eq!(jwt.claim_mappings, accepted.rules.jwt[0].claim_mappings, "it waits");
}

#[test]
fn an_issuer_of_which_no_token_passes_both_is_gone() {
    let (mut before, mut after) = (issuer(A), issuer(A));
    before["claimValidationRules"] = json!([{"claim": "hd", "requiredValue": "example.com"}]);
    after["claimValidationRules"] = json!([{"claim": "hd", "requiredValue": "example.org"}]);
    let held = narrow_to_spec(
        own(&json!({ "jwt": [before] })),
        Some(&rules(&json!({ "jwt": [after] }))),
        None,
    );
    assert!(held.rules.jwt.is_empty());
    let mut after = issuer(A);
    after["issuer"]["audiences"] = json!(["c"]);
    let held = narrow_to_spec(
        own(&json!({ "jwt": [issuer(A)] })),
        Some(&rules(&json!({ "jwt": [after] }))),
        None,
    );
    assert!(held.rules.jwt.is_empty());
}

#[test]
fn an_api_server_gets_no_rules_with_which_it_would_not_start() {
    let mut after = issuer(A);
    let long = "x".repeat(300 * 1024);
    after["userValidationRules"] = json!([{ "expression": long }]);
    let accepted = own(&json!({"jwt": [issuer(A), issuer(B)]}));
    let held = narrow_to_spec(accepted.clone(), Some(&rules(&json!({ "jwt": [after] }))), None);
    assert_eq!(held.rules.jwt, accepted.rules.jwt[..1]);
}

#[test]
fn a_spec_without_issuers_of_its_own_has_those_of_its_class() {
    let accepted = own(&json!({"jwt": [issuer(A)]}));
    let class = class(&json!({"default": {"jwt": [issuer(B)]}}));
    let held = narrow_to_spec(accepted.clone(), None, Some(&class));
    assert_eq!((urls(&held), held.from_class), (vec![B], true));
    // The class is gone: what the tenant had of its own is not listed any more.
    assert!(narrow_to_spec(accepted, None, None).rules.jwt.is_empty());
    let of_class = ResolvedAuthentication::of_class(&class.authentication);
    assert_eq!(narrow_to_spec(of_class.clone(), None, None), of_class);
}

#[test]
fn a_spec_takes_issuers_of_the_class_away_only_if_the_class_lets_it() {
    let class = |locked: bool| class(&json!({"default": {"jwt": [issuer(A), issuer(B)]}, "locked": locked}));
    let of_class = || ResolvedAuthentication::of_class(&class(false).authentication);
    let held = |spec: &Value, locked: bool| narrow_to_spec(of_class(), Some(&rules(spec)), Some(&class(locked)));
    assert_eq!(urls(&held(&json!({"jwt": [issuer(A)]}), false)), [A]);
    assert!(urls(&held(&json!({}), false)).is_empty());
    assert_eq!(urls(&held(&json!({}), true)), [A, B], "the platform decides");
    // Its own issuers were withdrawn, and the default of the class took their place.
    assert_eq!(urls(&held(&json!({"jwt": [issuer(C)]}), false)), [A, B]);
}
