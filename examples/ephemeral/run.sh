#!/bin/sh
# Runs a command with a tenant of its own: run.sh COMMAND [ARGUMENT...]. The command finds the kubeconfig in $KUBECONFIG.
#
# KUBECONFIG  the host cluster, for a user who may write TenantClusters in $NAMESPACE and read their Secrets
# NAMESPACE   of the TenantCluster; default: ci
# RUN         names the run; default: the time and the process
set -eu

folder=$(dirname "$0")
namespace=${NAMESPACE:-ci}
name=ci-$(printf '%s' "${RUN:-$(date +%s)-$$}" | tr -c 'a-z0-9\n' '-' | cut -c1-36 | sed 's/-*$//')
kubeconfig=$(mktemp)

# The TTL deletes the tenant if this script is killed.
cleanup() {
    rm -f "$kubeconfig"
    kubectl delete tenantcluster -n "$namespace" "$name" --ignore-not-found --wait=false
}
trap cleanup EXIT
trap 'exit 130' INT TERM

sed -e "s/^  name: ci-run$/  name: $name/" -e "s/^  namespace: ci$/  namespace: $namespace/" "$folder/tenant.yaml" |
    kubectl create -f -
kubectl wait --for=condition=Ready -n "$namespace" "tenantcluster/$name" --timeout=10m
kubectl get secret -n "$namespace" "$name-kubeconfig" -o 'jsonpath={.data.kubeconfig}' | base64 -d >"$kubeconfig"
KUBECONFIG=$kubeconfig "$@"
