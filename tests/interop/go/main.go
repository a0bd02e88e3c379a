// Go clients told what to do over standard input; see ../drivers.py.
//
// The argument names the client, "franz" or "sarama".  With "franz-group" or "sarama-group" and a
// task it is a member of a consumer group instead; see ../groups.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// Row is a record; bytes travel as base64, which is what encoding/json does with them.
type Row struct {
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
	Timestamp int64    `json:"timestamp"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
}

// Header is a pair of a name and bytes or null.
type Header struct {
	Name  string
	Value []byte
}

func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *Header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

// Call is one line of input.
type Call struct {
	Op         string            `json:"op"`
	Bootstrap  string            `json:"bootstrap"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Codec      string            `json:"codec"`
	Plain      bool              `json:"plain"` // a producer that is not idempotent
	Rows       []Row             `json:"rows"`
	From       [][3]any          `json:"from"`
	Count      int               `json:"count"`
	Time       int64             `json:"time"`
	Offset     int64             `json:"offset"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs"`
}

// Client is what both libraries can do here.
type Client interface {
	Produce(Call) ([]int64, error)
	Consume(Call) ([]Row, error)
	Admin(Call) (any, error)
}

func run(client Client, module string, call Call) (any, error) {
	switch call.Op {
	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return dependency.Version[1:], nil
			}
		}
		return nil, fmt.Errorf("%s is not linked", module)
	case "produce":
		return client.Produce(call)
	case "consume":
		return client.Consume(call)
	}
	return client.Admin(call)
}

func main() {
	if strings.HasSuffix(os.Args[1], "-group") {
		if err := runGroup(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	client, module := Client(Franz{}), "github.com/twmb/franz-go"
	if os.Args[1] == "sarama" {
		client, module = Sarama{}, "github.com/IBM/sarama"
	}
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var call Call
		var value any
		if err = json.Unmarshal(line, &call); err == nil {
			value, err = run(client, module, call)
		}
		if err != nil {
			answers.Encode(map[string]any{"error": map[string]string{
				"type": fmt.Sprintf("%T", err), "message": err.Error()}})
			continue
		}
		answers.Encode(map[string]any{"ok": value})
	}
}
