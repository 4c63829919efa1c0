// Health says what GitOps tools make of Kubernetes objects. Flux, Helm and kpt ask kstatus, which is called here as a library.
// Argo CD runs a Lua script, and this program runs it the way Argo CD does.
//
//	health SCRIPT.lua < objects.json
//
// Input: [{"name", "object"}]. Output, in the same order: [{"name", "kstatus", "kstatusMessage", "argo", "argoMessage"}].
// After an error it says why on stderr and exits with 1. Nothing is on stdout then.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// scriptLimit ends a script that never returns. Argo CD allows 1 s; a test machine may be busy.
const scriptLimit = 10 * time.Second

// hookFinalizer marks a resource that is one of Argo CD's hooks.
const hookFinalizer = "argocd.argoproj.io/hook-finalizer"

// healthStatuses are the words that Argo CD knows.
var healthStatuses = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

// question is one object of the input.
type question struct {
	Name   string          `json:"name"`
	Object json.RawMessage `json:"object"`
}

// answer is what the tools make of it.
type answer struct {
	Name           string `json:"name"`
	Kstatus        string `json:"kstatus"`
	KstatusMessage string `json:"kstatusMessage"`
	Argo           string `json:"argo"`
	ArgoMessage    string `json:"argoMessage"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "health:", err)
		os.Exit(1)
	}
}

func run(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) != 1 {
		return errors.New("usage: health SCRIPT.lua < objects.json")
	}
	script, err := os.ReadFile(arguments[0])
	if err != nil {
		return fmt.Errorf("read the Lua script: %w", err)
	}
	var questions []question
	if err := json.NewDecoder(in).Decode(&questions); err != nil {
		return fmt.Errorf("parse stdin as a list of {name, object}: %w", err)
	}
	answers := make([]answer, 0, len(questions))
	for index, question := range questions {
		answer, err := judge(question, string(script))
		if err != nil {
			return fmt.Errorf("object %d (%s): %w", index, question.Name, err)
		}
		answers = append(answers, answer)
	}
	return json.NewEncoder(out).Encode(answers)
}

func judge(question question, script string) (answer, error) {
	var object unstructured.Unstructured
	// This makes whole numbers int64, as a client of the API server does; kstatus refuses a generation of another type.
	if err := object.UnmarshalJSON(question.Object); err != nil {
		return answer{}, fmt.Errorf("parse it as a Kubernetes object: %w", err)
	}
	result, err := status.Compute(&object)
	if err != nil {
		return answer{}, fmt.Errorf("compute its kstatus: %w", err)
	}
	health, message, err := argoHealth(&object, script)
	if err != nil {
		return answer{}, fmt.Errorf("run the Lua script: %w", err)
	}
	return answer{question.Name, result.Status.String(), result.Message, health, message}, nil
}

// argoHealth does what Argo CD does in GetResourceHealth (gitops-engine/pkg/health/health.go) and ExecuteHealthLua
// (util/lua/lua.go, with useOpenLibs off). It differs where a script is wrong anyway:
//   - An error of the script, or a result that is no table, ends this program. Argo CD shows Unknown, or nothing for nil.
//   - An empty table is Unknown, like every result without a valid status. Argo CD shows nothing.
//   - The library `os`, which Argo CD cuts down to time and date, is not there.
func argoHealth(object *unstructured.Unstructured, script string) (health, message string, err error) {
	if object.GetDeletionTimestamp() != nil && !slices.Contains(object.GetFinalizers(), hookFinalizer) {
		return "Progressing", "Pending deletion", nil
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenPackage, lua.OpenBase, lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Call(0, 0)
	}
	limit, cancel := context.WithTimeout(context.Background(), scriptLimit)
	defer cancel()
	state.SetContext(limit)
	state.SetGlobal("obj", luaValue(state, object.Object))
	if err := state.DoString(script); err != nil {
		return "", "", err
	}
	result, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return "", "", fmt.Errorf("it returned %s, not a table", state.Get(-1).Type())
	}
	health = lua.LVAsString(result.RawGetString("status"))
	if !slices.Contains(healthStatuses, health) {
		return "Unknown", "Lua returned an invalid health status", nil
	}
	return health, lua.LVAsString(result.RawGetString("message")), nil
}

// luaValue is a JSON value in Lua. Null is nil: a field that is null is absent.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		list := state.NewTable()
		for _, item := range value {
			list.Append(luaValue(state, item))
		}
		return list
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
