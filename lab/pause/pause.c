/*
 * The process that holds a pod's namespaces.
 *
 * It does nothing, collects the children that a pod with a shared process
 * namespace leaves to it, and ends with 0 when it is asked to.
 *
 * The signals are blocked and waited for instead of handled: the kernel drops
 * a signal that the first process of a namespace leaves at its default, but
 * never one that is blocked, and there is no moment between two waits in which
 * one could be lost.
 */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return 1;

	for (;;) {
		/*
		 * One signal may stand for many children, and none for those that
		 * ended before the signals were blocked.
		 */
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (sigwait(&set, &sig) != 0)
			return 1;
		if (sig != SIGCHLD)
			return 0;
	}
}
