// kube-scheduler with one more plugin, which is off unless a profile enables it: E2EGang holds the
// pods of a gang in Permit until all of them have a node, as the coscheduling plugin does.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const (
	name = "E2EGang"
	// Annotations of a pod: its gang, how many pods that has, and how many seconds they wait for
	// each other. A gang that waited in vain is not tried for as long.
	gangKey = "e2e.hami-node/gang"
	sizeKey = "e2e.hami-node/size"
	waitKey = "e2e.hami-node/wait-seconds"
)

type gangs struct {
	handle  fwk.Handle
	lock    sync.Mutex
	refused map[string]time.Time
}

var (
	_ fwk.PreFilterPlugin = &gangs{}
	_ fwk.ReservePlugin   = &gangs{}
	_ fwk.PermitPlugin    = &gangs{}
)

func (*gangs) Name() string { return name }

func (g *gangs) PreFilter(
	_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	g.lock.Lock()
	defer g.lock.Unlock()
	if since, ok := g.refused[gangOf(pod)]; ok && time.Since(since) < waitOf(pod) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "its gang waited in vain")
	}
	return nil, nil
}

func (*gangs) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (g *gangs) Permit(
	_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string,
) (*fwk.Status, time.Duration) {
	gang := gangOf(pod)
	if gang == "" {
		return nil, 0
	}
	nodes, err := g.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(err), 0
	}
	placed := 1 // this one; the snapshot is older, and has those that wait as well as those that run
	for _, node := range nodes {
		for _, other := range node.GetPods() {
			if gangOf(other.GetPod()) == gang {
				placed++
			}
		}
	}
	if size, _ := strconv.Atoi(pod.Annotations[sizeKey]); placed < size {
		return fwk.NewStatus(fwk.Wait, fmt.Sprintf("%d of %d pods", placed, size)), waitOf(pod)
	}
	g.eachWaiting(gang, func(other fwk.WaitingPod) { other.Allow(name) })
	return nil, 0
}

func (*gangs) Reserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }

// Unreserve gives up the whole gang with the first of its pods that is given up.
func (g *gangs) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	gang := gangOf(pod)
	if gang == "" {
		return
	}
	g.lock.Lock()
	g.refused[gang] = time.Now()
	g.lock.Unlock()
	g.eachWaiting(gang, func(other fwk.WaitingPod) {
		other.Reject(name, "its gang waited in vain")
	})
}

func (g *gangs) eachWaiting(gang string, act func(fwk.WaitingPod)) {
	g.handle.IterateOverWaitingPods(func(other fwk.WaitingPod) {
		if gangOf(other.GetPod()) == gang {
			act(other)
		}
	})
}

func gangOf(pod *v1.Pod) string {
	if gang := pod.Annotations[gangKey]; gang != "" {
		return pod.Namespace + "/" + gang
	}
	return ""
}

func waitOf(pod *v1.Pod) time.Duration {
	seconds, _ := strconv.Atoi(pod.Annotations[waitKey])
	return time.Duration(seconds) * time.Second
}

func newGangs(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	return &gangs{handle: handle, refused: map[string]time.Time{}}, nil
}

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(name, newGangs))))
}
