// Connects with pgx and the URI in the file that the first argument names.
//
// Prints one line of JSON: driver, version, ok, encrypted, error.
package main

import (
	"context"
	"encoding/json"
	"os"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	module        = "github.com/jackc/pgx/v5"
	timeToConnect = 10 * time.Second
	query         = "select current_user::text, (select ssl from pg_stat_ssl where pid = pg_backend_pid())"
)

type report struct {
	Driver    string `json:"driver"`
	Version   string `json:"version"`
	OK        bool   `json:"ok"`
	Encrypted bool   `json:"encrypted"`
	Error     string `json:"error"`
}

func main() {
	report := report{Driver: "pgx", Version: version()}
	encrypted, err := connect(os.Args[1])
	if err != nil {
		report.Error = err.Error()
	} else {
		report.OK, report.Encrypted = true, encrypted
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
}

func connect(file string) (encrypted bool, err error) {
	uri, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeToConnect)
	defer cancel()
	connection, err := pgx.Connect(ctx, string(uri))
	if err != nil {
		return false, err
	}
	defer connection.Close(ctx)
	var user string
	err = connection.QueryRow(ctx, query).Scan(&user, &encrypted)
	return encrypted, err
}

// version returns the version of pgx that this program was built with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return ""
}
