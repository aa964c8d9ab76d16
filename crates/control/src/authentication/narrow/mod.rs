//! What a tenant keeps of its issuers while its spec is not accepted: only tokens that this spec would let in as well.
//!
//! What a spec adds waits until it is accepted. What it takes away does not: nobody who was removed stays because of another field.

use super::{ResolvedAuthentication, check, find_error};
use berth_api::{ClaimValidationRule, JwtAuthenticator, TenantAuthentication, TenantClassSpec};

/// What a tenant has that was `accepted` with something and whose spec says `own` now; none: the spec has nothing of its own. `class` is the class
/// with which it runs, as it is now; none: that is gone, or there was none.
pub fn narrow_to_spec(
    accepted: ResolvedAuthentication,
    own: Option<&TenantAuthentication>,
    class: Option<&TenantClassSpec>,
) -> ResolvedAuthentication {
    let of_class = class.map(|class| ResolvedAuthentication::of_class(&class.authentication));
    let Some(own) = own else {
        return match of_class {
            Some(of_class) => of_class,
            None if accepted.from_class => accepted,
            None => narrow(&accepted, &TenantAuthentication::default()),
        };
    };
    if !accepted.from_class {
        return narrow(&accepted, own);
    }
    let default = of_class.unwrap_or(accepted);
    // A tenant whose own issuers were withdrawn, or may not be set at all, has the default of the class although its spec lists others.
    if class.is_some_and(|class| check(own, class).is_ok()) {
        narrow(&default, own)
    } else {
        default
    }
}

/// What of `accepted` is also in `listed`.
fn narrow(accepted: &ResolvedAuthentication, listed: &TenantAuthentication) -> ResolvedAuthentication {
    let TenantAuthentication {
        jwt,
        kubeconfig,
        // It names tokens and lets nobody in.
        service_account_issuer,
    } = &accepted.rules;
    let pairs = jwt.iter().filter_map(|one| {
        let mut listed = listed.jwt.iter();
        listed
            .find(|other| other.issuer.url == one.issuer.url)
            .map(|other| (one, other))
    });
    let with = |jwt: Vec<JwtAuthenticator>| {
        let signs_in = |issuer: &String, client: &String| {
            let mut issuers = jwt.iter().map(|one| &one.issuer);
            issuers.any(|one| one.url == *issuer && one.audiences.contains(client))
        };
        TenantAuthentication {
            kubeconfig: kubeconfig
                .clone()
                .filter(|sign_in| signs_in(&sign_in.issuer, &sign_in.client_id)),
            service_account_issuer: *service_account_issuer,
            jwt,
        }
    };
    let mut rules = with(
        pairs
            .clone()
            .filter_map(|(one, listed)| narrow_issuer(one, listed))
            .collect(),
    );
    // An API server must start with it: rules that are too long together are those of a spec that says so in its condition.
    if find_error(&rules).is_some() {
        rules = with(pairs.map(|(one, _)| one.clone()).collect());
    }
    ResolvedAuthentication {
        rules,
        from_class: accepted.from_class,
    }
}

/// An issuer as it was accepted, with the rules that its spec adds, for the audiences that are in both. None: no token passes both. How a token becomes a
/// user, and where keys come from, stays: another name takes nobody's rights away for sure.
fn narrow_issuer(accepted: &JwtAuthenticator, listed: &JwtAuthenticator) -> Option<JwtAuthenticator> {
    let mut kept = accepted.clone();
    kept.issuer
        .audiences
        .retain(|audience| listed.issuer.audiences.contains(audience));
    for rule in &listed.claim_validation_rules {
        let is_same = |own: &&ClaimValidationRule| {
            (own.claim.as_ref(), own.expression.as_ref()) == (rule.claim.as_ref(), rule.expression.as_ref())
        };
        match kept.claim_validation_rules.iter().find(is_same) {
            None => kept.claim_validation_rules.push(rule.clone()),
            // API servers take one rule for a claim, which has one value.
            Some(own)
                if own.required_value.as_deref().unwrap_or_default()
                    != rule.required_value.as_deref().unwrap_or_default() =>
            {
                return None;
            }
            Some(_) => {}
        }
    }
    for rule in &listed.user_validation_rules {
        if kept
            .user_validation_rules
            .iter()
            .all(|own| own.expression != rule.expression)
        {
            kept.user_validation_rules.push(rule.clone());
        }
    }
    (!kept.issuer.audiences.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests;
