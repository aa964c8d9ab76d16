/* A part of programs that hack/release links statically with glibc.
 *
 * glibc looks names up with modules that /etc/nsswitch.conf lists. A static program would load those of the machine that it runs on, which
 * were built for the glibc there, and could crash. The modules "files" and "dns" are in glibc itself (since 2.34): only these are used. */

#include <nss.h>

__attribute__((constructor)) static void use_own_modules(void) {
  __nss_configure_lookup("hosts", "files dns");
  __nss_configure_lookup("passwd", "files");
  __nss_configure_lookup("group", "files");
}
